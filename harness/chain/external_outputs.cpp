// Names and shapes of what another program says its model gave.
#include <algorithm>
#include <optional>
#include <set>

#include "harness/chain/chain_compare.h"
#include "harness/chain/external_chain.h"
#include "harness/io/nearest_name.h"
#include "harness/io/printable.h"
#include "harness/recording/recording_chain.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr std::string_view kLogits = "logits";

std::vector<const Checkpoint*> heads_of(const Recording& recording) {
  std::vector<const Checkpoint*> out;
  for (const Checkpoint& c : recording.checkpoints()) {
    if (c.block == "lm_head" && !chain_outputs(c).empty()) out.push_back(&c);
  }
  return out;
}

const Shape& shape_of(const Recording& recording, const Checkpoint& c, const std::string& output) {
  return recording.tensor_info(c.outputs.at(output).tensor).shape;
}

// Tokens that the model was given in the step of this head.
int64_t tokens_of(const Recording& recording, const Checkpoint& head) {
  for (const Checkpoint& c : recording.checkpoints()) {
    if (c.block != "embedding" || c.step != head.step) continue;
    return recording.tensor_info(c.outputs.at("out").tensor).shape[1];
  }
  return shape_of(recording, head, "out")[1];
}

void require_floats(const Tensor& y, const std::string& where) {
  if (!is_floating(y.dtype())) {
    throw BadInput(text(where, " is ", name_of(y.dtype()), "; expected f16, bf16, f32 or f64"));
  }
}

Tensor fitting(const Recording& recording, const Checkpoint& c, const std::string& output,
               const Tensor& y, const std::string& where) {
  require_floats(y, where);
  const Shape& expected = shape_of(recording, c, output);
  const bool longer = c.block == "lm_head" && y.rank() == 3 && y.dim(0) == expected[0] &&
                      y.dim(1) > expected[1] && y.dim(1) == tokens_of(recording, c) &&
                      y.dim(2) == expected[2];
  const Tensor out = longer ? last_tokens(y, expected[1]) : y;
  if (!(out.shape() == expected)) {
    throw BadInput(text(where, " has shape ", y.shape(), ", the recording's is ", expected));
  }
  return out;
}

// Tokens [begin, end) of [batch, token, ...], contiguous.
Tensor tokens_between(const Tensor& y, int64_t begin, int64_t end) {
  Shape shape = y.shape();
  shape.set(1, end);
  const Tensor until = host_tensor(y.dtype(), shape);
  const int64_t all = y.bytes() / y.dim(0), kept = until.bytes() / y.dim(0);
  for (int64_t b = 0; b < y.dim(0); ++b) {
    std::copy_n(y.data<char>() + b * all, kept, until.data<char>() + b * kept);
  }
  return last_tokens(until, end - begin);
}

void add_all_logits(ChainOutputs& out, const Recording& recording, const Tensor& y,
                    const std::string& where) {
  require_floats(y, where);
  int64_t tokens = 0;
  const auto heads = heads_of(recording);
  for (const Checkpoint* head : heads) tokens += tokens_of(recording, *head);
  if (y.rank() != 3 || y.dim(1) != tokens) {
    throw BadInput(text(where, " has shape ", y.shape(), "; the ", heads.size(),
                        " steps of the recording have ", tokens, " tokens: expected [batch, ",
                        tokens, ", vocab], or a tensor logits#0, ",
                        "logits#1, ... for every step"));
  }
  int64_t begin = 0;
  for (const Checkpoint* head : heads) {
    const int64_t end = begin + tokens_of(recording, *head);
    out[head->id]["out"] = fitting(recording, *head, "out", tokens_between(y, begin, end), where);
    begin = end;
  }
}

// "logits#2" -> the head of step 2; null: another name.
const Checkpoint* head_of_step(const Recording& recording, const std::string& name) {
  for (const Checkpoint* head : heads_of(recording)) {
    if (name == text(kLogits, '#', head->step)) return head;
  }
  return nullptr;
}

struct Named {
  const Checkpoint* checkpoint;
  std::string output;
};

std::optional<Named> find_chained(const Recording& recording, const std::string& name) {
  const size_t slash = name.rfind('/');
  if (slash == std::string::npos) return std::nullopt;
  const std::string id = name.substr(0, slash), output = name.substr(slash + 1);
  for (const Checkpoint& c : recording.checkpoints()) {
    const auto outputs = chain_outputs(c);
    if (c.id == id && std::find(outputs.begin(), outputs.end(), output) != outputs.end()) {
      return Named{&c, output};
    }
  }
  return std::nullopt;
}

std::string unknown_name(const Recording& recording, const std::string& name) {
  std::vector<std::string> known = {std::string(kLogits)};
  for (const Checkpoint& c : recording.checkpoints()) {
    for (const std::string_view output : chain_outputs(c)) known.push_back(text(c.id, '/', output));
  }
  return text("names no chained output of ", recording.folder().string(), did_you_mean(name, known),
              "; expected logits, logits#<step> or \"<checkpoint id>/<output name>\"");
}

}  // namespace

ChainOutputs chain_outputs_of(const Recording& recording,
                              const std::map<std::string, Tensor>& named, const std::string& file) {
  require<BadInput>(recording.chained(), "chain", recording.name(),
                    " has no chained oracle; record it again with one (--chained)");
  ChainOutputs out;
  for (const auto& [name, y] : named) {
    const std::string where = text(file, ": tensor ", printable(name));
    if (name == kLogits) {
      add_all_logits(out, recording, y, where);
      continue;
    }
    auto found = find_chained(recording, name);
    if (const Checkpoint* head = head_of_step(recording, name)) found = Named{head, "out"};
    if (!found) throw BadInput(text(where, ' ', unknown_name(recording, name)));
    const auto [c, output] = *found;
    const Tensor fits = fitting(recording, *c, output, y, where);
    if (!out[c->id].emplace(output, fits).second) {
      throw BadInput(text(where, ": ", c->id, " is given twice"));
    }
  }
  if (out.empty()) throw BadInput(text(file, ": holds no outputs"));
  return out;
}

}  // namespace plumb::harness
