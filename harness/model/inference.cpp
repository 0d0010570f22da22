#include "harness/model/inference.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "harness/io/printable.h"
#include "harness/recording/select.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr int64_t kLargestTokenFile = int64_t{256} << 20;

bool is_id_text(const std::string& text) {
  return text.find_first_not_of("0123456789, ") == std::string::npos;
}

std::vector<int64_t> parse_row(std::string line, const std::string& where) {
  std::replace(line.begin(), line.end(), ',', ' ');
  std::istringstream words(line);
  std::vector<int64_t> out;
  for (std::string word; words >> word;) {
    int64_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0) {
      throw BadInput(text(where, ": ", printable(word), " is no token id"));
    }
    out.push_back(id);
  }
  return out;
}

void place(const TokenRows& tokens, int64_t vocabulary, const Tensor& host) {
  int64_t* next = host.data<int64_t>();
  for (const std::vector<int64_t>& row : tokens) {
    for (size_t t = 0; t < row.size(); ++t) {
      require(row[t] >= 0 && row[t] < vocabulary, "forward", "token ", t, " has id ", row[t],
              ", the model has ids 0 to ", vocabulary - 1);
      *next++ = row[t];
    }
  }
}

}  // namespace

TokenRows read_tokens(const std::string& ids_or_file) {
  TokenRows rows;
  if (is_id_text(ids_or_file)) {
    rows.push_back(parse_row(ids_or_file, "--tokens"));
  } else {
    const File file = File::open(ids_or_file);
    std::istringstream lines(file.read_all(kLargestTokenFile));
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      rows.push_back(parse_row(line, text(file.name(), ": line ", ++number)));
      if (rows.back().empty()) rows.pop_back();
    }
  }
  require(!rows.empty() && !rows[0].empty(), "--tokens", "\"", ids_or_file,
          "\" holds no token ids; give 1,2,3 or a file with one sequence per line");
  return rows;
}

std::vector<int64_t> pad_left(TokenRows& rows) {
  size_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, row.size());
  std::vector<int64_t> out;
  bool any = false;
  for (auto& row : rows) {
    const size_t absent = longest - row.size();
    row.insert(row.begin(), absent, 0);
    out.push_back(static_cast<int64_t>(absent));
    any |= absent > 0;
  }
  return any ? out : std::vector<int64_t>();
}

std::filesystem::path find_model(const std::string& name) {
  if (name.substr(0, 4) != "tiny" || (name.size() > 4 && name[4] != ':')) return name;
  const std::string wanted = name.size() > 5 ? name.substr(5) : "llama-a1";
  const auto recording = default_fixtures() / wanted / "whole-f32";
  std::error_code failure;
  require(is_plain_file_name(wanted) && std::filesystem::is_directory(recording, failure),
          "--model", "there is no recording ", recording.string(), "; harness list shows all");
  return recording;
}

Inference::Inference(const ModelFolder& folder, Device& device, DType dtype, int64_t batch,
                     int64_t max_length, const std::vector<int64_t>& padding, bool replay,
                     blocks::CacheKind kind)
    : folder_(folder),
      device_(device),
      model_(folder.load(device, dtype)),
      padding_(padding),
      sequence_(model_->begin(device, batch, max_length, padding, kind)),
      step_ids_(device.allocate(DType::i64, {batch, 1})),
      step_logits_(device.allocate(dtype, {batch, 1, model_->vocabulary()})),
      chosen_(device.allocate(DType::i64, {kMostAtOnce, batch})),
      step_(*model_, device, sequence_, step_ids_, step_logits_, replay),
      greedy_step_(*model_, device, sequence_, step_ids_, step_logits_, replay) {
  greedy_step_.choose_greedily(chosen_);
}

void Inference::run_prompt(const Tensor& host_ids, int64_t kept, blocks::Observer* observer) {
  const Shape logits{host_ids.dim(0), kept, vocabulary()};
  if (!ids_.defined() || !(ids_.shape() == host_ids.shape())) {
    ids_ = device_.allocate(DType::i64, host_ids.shape());
  }
  if (!logits_.defined() || !(logits_.shape() == logits)) {
    logits_ = device_.allocate(model_->dtype(), logits);
  }
  device_.upload(ids_, host_ids.raw());
  blocks::Context ctx{device_.ops(), observer};
  model_->forward(ctx, logits_, ids_, sequence_);
}

Tensor Inference::forward(const TokenRows& tokens, int64_t keep, blocks::Observer* observer) {
  const auto batch = static_cast<int64_t>(tokens.size());
  const auto count = static_cast<int64_t>(tokens.at(0).size());
  const int64_t kept = keep > 0 ? std::min(keep, count) : count;
  const Tensor host = host_tensor(DType::i64, {batch, count});
  place(tokens, vocabulary(), host);
  const bool single = count == 1 && batch == sequence_.batch && !observer;
  if (single) {
    device_.upload(step_ids_, host.raw());
    step_();
  } else {
    run_prompt(host, kept, observer);
  }
  const Tensor& logits = single ? step_logits_ : logits_;
  const Tensor out = host_tensor(logits.dtype(), logits.shape());
  device_.download(out.raw(), logits);
  finish();
  return out;
}

TokenRows Inference::decode_greedily(const std::vector<int64_t>& last, int64_t count) {
  require(static_cast<int64_t>(last.size()) == sequence_.batch && count > 0 && count <= kMostAtOnce,
          "generate", count, " tokens behind ", last.size(), " are asked for, of ", sequence_.batch,
          " sequences at most ", kMostAtOnce);
  device_.upload(step_ids_, last.data());
  for (int64_t step = 0; step < count; ++step) greedy_step_();
  const Tensor host = host_tensor(DType::i64, chosen_.shape());
  device_.download(host.raw(), chosen_);
  finish();
  TokenRows out;
  for (int64_t step = count - 1; step >= 0; --step) {
    const int64_t at = (sequence_.length - step) % kMostAtOnce * sequence_.batch;
    const int64_t* ids = host.data<int64_t>() + at;
    out.emplace_back(ids, ids + sequence_.batch);
  }
  return out;
}

void Inference::restart() {
  sequence_ =
      model_->begin(device_, sequence_.batch, sequence_.max_length, padding_, sequence_.kind);
}

int64_t Inference::at_once(double seconds_a_step) {
  constexpr double kTogether = 0.02;
  const double fit = kTogether / std::max(seconds_a_step, 1e-9);
  return static_cast<int64_t>(std::clamp(fit, 1.0, static_cast<double>(kMostAtOnce)));
}

void Inference::finish() {
  device_.synchronize();
  folder_.check();
}

}  // namespace plumb::harness
