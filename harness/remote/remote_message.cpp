#include "harness/remote/remote_message.h"

#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "harness/io/json.h"
#include "harness/io/printable.h"
#include "kernels/core/error.h"
#include "kernels/ops/map_call.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/table.h"
#include "kernels/plugin/call_params.h"

namespace plumb::harness {
namespace {

constexpr const char* kProtocol = "plumbline-device 1";
constexpr size_t kLength = 8;
constexpr uint64_t kLargestHeader = 100'000'000;
constexpr size_t kShown = 40;  // bytes of what is no message

nlohmann::ordered_json words_of(const CallParams& params) {
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  constexpr double kMost = std::numeric_limits<double>::max();  // JSON has no infinity
  for (const NamedParam& param : named(params)) {
    nlohmann::ordered_json values = param.integers;
    if (param.integers.empty()) {
      values = nlohmann::ordered_json::array();
      for (const double value : param.numbers) values.push_back(std::clamp(value, -kMost, kMost));
    }
    out[std::string(param.name)] = values.size() == 1 ? values[0] : values;
  }
  return out;
}

std::string formula_of(const OpCall& call) {
  if (has_one_formula(call.op)) return text_of(call.op, *row_of(call.op).formula);
  return row_of(call.op).reduction ? text_of(*row_of(call.op).reduction) : "";
}

void append_dense(std::string& to, const Tensor& tensor) {
  const auto size = static_cast<size_t>(size_of(tensor.dtype()));
  const int64_t width = tensor.rank() ? tensor.dim(-1) : 1;
  const bool repeats = width > 1 && tensor.stride(-1) == 0;
  for_each_row(tensor, [&](int64_t offset) {
    const char* row = tensor.data<char>() + offset * static_cast<int64_t>(size);
    for (int64_t i = 0; repeats && i < width; ++i) to.append(row, size);
    if (!repeats) to.append(row, static_cast<size_t>(width) * size);
  });
}

// The call's own: of the first operand that has it.
DType storage_of(const OpCall& call) {
  const std::vector<Tensor> tensors = call.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Operand& operand = call.signature().operands.at(i);
    if (tensors[i].defined() && operand.type == OperandType::storage) return tensors[i].dtype();
  }
  return tensors.at(0).dtype();
}

// Bytes from a pipe, at most until a time.
class Source {
 public:
  Source(int descriptor, double seconds) : descriptor_(descriptor) {
    if (seconds > 0) end_ = Clock::now() + std::chrono::milliseconds(std::lround(seconds * 1e3));
  }

  // As many as asked for, or those that came before the end.
  size_t read(char* to, size_t bytes) {
    size_t done = 0;
    while (done < bytes && wait()) {
      const ssize_t got = ::read(descriptor_, to + done, bytes - done);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      done += static_cast<size_t>(got);
    }
    return done;
  }
  bool late() const { return late_; }

 private:
  using Clock = std::chrono::steady_clock;

  bool wait() {
    if (!end_) return true;
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*end_ - Clock::now()).count();
      pollfd ready{descriptor_, POLLIN, 0};
      const int found = ::poll(&ready, 1, static_cast<int>(std::max<int64_t>(left, 0)));
      if (found < 0 && errno == EINTR) continue;
      late_ = found == 0;
      return found > 0;
    }
  }

  int descriptor_;
  std::optional<Clock::time_point> end_;
  bool late_ = false;
};

void write_all(int descriptor, const char* from, size_t bytes, const std::string& name) {
  while (bytes > 0) {
    const ssize_t done = ::write(descriptor, from, bytes);
    if (done < 0 && errno == EINTR) continue;
    require<Error>(done > 0, name.c_str(), "no memory for a message: ", std::strerror(errno));
    from += done;
    bytes -= static_cast<size_t>(done);
  }
}

// Bytes behind the header: the largest end of a tensor.
int64_t payload_of(const std::string& header, const std::string& name) {
  int64_t end = 0;
  const auto document = JsonDocument::parse(name, header);
  for (const auto& [tensor, value] : document->root().members()) {
    if (tensor == "__metadata__") continue;
    for (const JsonValue offset : value.at("data_offsets").items()) {
      end = std::max(end, offset.integer(0));
    }
  }
  return end;
}

const std::string* word_of(const SafetensorsFile& file, std::string_view name) {
  const auto found = file.metadata().find(name);
  return found == file.metadata().end() ? nullptr : &found->second;
}

OpId op_named(const JsonMember& member) {
  for (int i = 0; i < kOpCount; ++i) {
    if (name_of(static_cast<OpId>(i)) == member.name) return static_cast<OpId>(i);
  }
  member.value.fail(printable(member.name), " is no op; harness list --ops has them");
}

Contract contract_of(const JsonValue& value) {
  value.only({"accumulator_bits", "truncated_block", "fused"});
  Contract out;
  if (const auto bits = value.find("accumulator_bits")) {
    out.accumulator.bits = static_cast<int>(bits->integer(2, 53));
  }
  if (const auto block = value.find("truncated_block")) {
    out.accumulator.block = static_cast<int>(block->integer(1, 1 << 20));
    out.accumulator.rounding = SumRounding::toward_zero;
  }
  const auto fused = value.find("fused");
  if (fused && fused->boolean()) out.points = RoundingPoints::fused;
  return out;
}

}  // namespace

std::string request_of(const OpCall& call) {
  const std::vector<Tensor> tensors = call.tensors();
  std::vector<SafetensorsItem> items;
  nlohmann::ordered_json outputs = nlohmann::ordered_json::array();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    if (!tensor.defined()) continue;
    const std::string name(row_of(call.op).operands.operands.at(i).name);
    if (!call.writes(i)) {
      items.push_back({name, tensor.dtype(), tensor.shape()});
      continue;
    }
    nlohmann::ordered_json shape = nlohmann::ordered_json::array();
    for (int axis = 0; axis < tensor.rank(); ++axis) shape.push_back(tensor.dim(axis));
    outputs.push_back(
        {{"name", name}, {"dtype", safetensors_name(tensor.dtype())}, {"shape", shape}});
  }
  std::map<std::string, std::string> metadata = {
      {"op", std::string(name_of(call.op))},
      {"dtype", std::string(safetensors_name(storage_of(call)))},
      {"params", words_of(params_of(call)).dump()},
      {"outputs", outputs.dump()}};
  if (const std::string formula = formula_of(call); !formula.empty()) metadata["formula"] = formula;
  std::string out = safetensors_header(items, metadata);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined() && !call.writes(i)) append_dense(out, tensors[i]);
  }
  return out;
}

SafetensorsFile read_message(int descriptor, const std::string& name, double seconds) {
  Source source(descriptor, seconds);
  std::string begin(kLength, '\0');
  begin.resize(source.read(begin.data(), kLength));
  if (begin.empty()) {
    throw NoMessage(source.late() ? text("sent nothing within ", seconds, " s") : "");
  }
  uint64_t length = 0;
  if (begin.size() == kLength) std::memcpy(&length, begin.data(), kLength);
  std::string header;
  if (length >= 2 && length <= kLargestHeader) {
    header.resize(length);
    header.resize(source.read(header.data(), length));
  }
  if (header.size() < length || header.empty() || header[0] != '{') {
    std::string shown = begin + header;
    if (shown.size() < kShown && length > kLargestHeader) {
      std::string more(kShown - shown.size(), '\0');
      more.resize(Source(descriptor, 0.1).read(more.data(), more.size()));
      shown += more;
    }
    throw NoMessage(text("sent ", printable(shown.substr(0, kShown)),
                         " where a message begins (harness/remote/protocol.md); what it prints has "
                         "to go to stderr"));
  }
  Descriptor memory(::memfd_create("plumbline message", MFD_CLOEXEC));
  write_all(memory.number(), begin.data(), begin.size(), name);
  write_all(memory.number(), header.data(), header.size(), name);
  std::string piece(size_t{1} << 20, '\0');
  for (auto left = static_cast<uint64_t>(payload_of(header, name)); left > 0;) {
    const size_t got = source.read(piece.data(), std::min<uint64_t>(left, piece.size()));
    if (got == 0) throw NoMessage(text("ended ", left, " bytes before the end of a message"));
    write_all(memory.number(), piece.data(), got, name);
    left -= got;
  }
  return SafetensorsFile(File::checked(std::move(memory), name));
}

void take_outputs(const SafetensorsFile& answer, const OpCall& call, const std::string& where) {
  if (const std::string* why = word_of(answer, "unsupported")) throw Unsupported(where + *why);
  if (const std::string* why = word_of(answer, "error")) throw DeviceError(where + *why);
  const std::vector<Tensor> tensors = call.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& to = tensors[i];
    if (!to.defined() || !call.writes(i)) continue;
    const std::string_view name = row_of(call.op).operands.operands.at(i).name;
    const auto found = answer.entries().find(name);
    if (found == answer.entries().end()) {
      throw DeviceError(text(where, "its answer has no tensor \"", name, "\""));
    }
    const SafetensorsEntry& entry = found->second;
    if (entry.dtype != to.dtype() || !(entry.shape == to.shape())) {
      throw DeviceError(text(where, "gave ", name, " as ", safetensors_name(entry.dtype), ' ',
                             entry.shape, ", expected ", safetensors_name(to.dtype()), ' ',
                             to.shape()));
    }
    const Tensor from = answer.read(name);
    const char* bytes = from.data<char>();
    const int64_t size = size_of(to.dtype());
    const int64_t row = (to.rank() ? to.dim(-1) : 1) * size;
    for_each_row(to, [&](int64_t offset) {
      std::memcpy(to.data<char>() + offset * size, bytes, static_cast<size_t>(row));
      bytes += row;
    });
  }
}

RemoteHello hello_of(const SafetensorsFile& message) {
  const std::string& file = message.file().name();
  const std::string* protocol = word_of(message, "protocol");
  if (!protocol || *protocol != kProtocol) {
    throw BadInput(text(file, ": its first message says protocol ",
                        protocol ? printable(*protocol) : "nothing", ", expected \"", kProtocol,
                        "\" (harness/remote/protocol.md)"));
  }
  RemoteHello out;
  if (const std::string* name = word_of(message, "name")) out.name = printable(*name);
  const std::string* ops = word_of(message, "ops");
  if (!ops) throw BadInput(file + ": its first message has no ops");
  const auto document = JsonDocument::parse(file + ": ops", *ops);
  for (const JsonMember member : document->root().members()) {
    if (member.name == "formulas") {  // all that are one formula, unless they are named
      for (int i = 0; i < kOpCount; ++i) {
        const auto op = static_cast<OpId>(i);
        if (has_one_formula(op)) out.ops.try_emplace(op, contract_of(member.value));
      }
    } else {
      out.ops[op_named(member)] = contract_of(member.value);
    }
  }
  if (out.ops.empty()) throw BadInput(file + ": its first message names no op");
  return out;
}

}  // namespace plumb::harness
