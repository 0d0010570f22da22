#include "kernels/plugin/confined_call.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <sstream>

#include "kernels/core/error.h"

namespace plumb {
namespace {

constexpr size_t kScratchAlignment = 64;

// The operands of plugin.h in the order of OpCall::tensors().
std::string_view names_of(OpId op) {
  switch (op) {
    case OpId::embedding: return "out ids weight";
    case OpId::rms_norm: return "out x weight";
    case OpId::layer_norm: return "out x weight bias";
    case OpId::linear: return "out x weight bias";
    case OpId::add:
    case OpId::mul:
    case OpId::div:
    case OpId::matmul: return "out a b";
    case OpId::masked_add: return "out x mask";
    case OpId::rotary_table: return "cos sin positions inv_freq";
    case OpId::rotary: return "out x cos sin";
    case OpId::causal_mask: return "out key_valid explicit_mask";
    case OpId::mask_rows: return "out x valid";
    case OpId::gated_activation: return "out gate up";
    case OpId::add_rms_norm: return "sum out x residual weight";
    case OpId::sdpa: return "out q k v key_valid explicit_mask";
    default: return "out x";
  }
}

// Bytes from a tensor's first element to its last.
int64_t extent_of(const Tensor& t) {
  if (t.numel() == 0) return 0;
  int64_t last = 0;
  for (int axis = 0; axis < t.rank(); ++axis) last += (t.dim(axis) - 1) * t.stride(axis);
  return (last + 1) * size_of(t.dtype());
}

// Bytes of a device under no tensor's name.
class Extent final : public Storage {
 public:
  using Storage::Storage;
};
Tensor bytes_tensor(const Device& device, void* data, int64_t bytes) {
  return Tensor(std::make_shared<Extent>(data, bytes, &device), DType::u8, {bytes});
}

}  // namespace

ConfinedCall::ConfinedCall(Device& device, const OpCall& call, PageEnd end, int64_t alignment,
                           PagePool& pool)
    : device_(device), op_(call.op), pool_(pool), on_host_(device.host_owner() != nullptr) {
  const std::vector<Tensor> tensors = call.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    operands_.push_back({tensors[i], call.writes(i)});
    if (tensors[i].defined()) operands_.back().bytes = extent_of(tensors[i]);
  }
  find_homes();
  for (Home& home : homes_) {
    if (alignment > 0) home.alignment = alignment;
    if (on_host_) place_on_host(home, end, pool);
    else place_on_device(home);
  }
  for (Operand& operand : operands_) {
    if (!operand.tensor.defined()) continue;
    const Home& home = homes_[operand.home];
    operand.data = home.data + (static_cast<char*>(operand.tensor.raw()) - home.from);
  }
}

// Sorted by address, what meets the one before it goes there.
void ConfinedCall::find_homes() {
  std::vector<size_t> order(operands_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t i) { return !operands_[i].tensor.defined(); });
  const auto start = [&](size_t i) { return static_cast<char*>(operands_[i].tensor.raw()); };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return start(a) < start(b); });
  for (const size_t i : order) {
    Operand& operand = operands_[i];
    char* const from = start(i);
    if (homes_.empty() || from >= homes_.back().from + homes_.back().bytes) {
      homes_.emplace_back().from = from;
    }
    Home& home = homes_.back();
    home.bytes = std::max<int64_t>(home.bytes, from - home.from + operand.bytes);
    home.written = home.written || operand.written;
    home.alignment = std::max(home.alignment, size_of(operand.tensor.dtype()));
    operand.home = homes_.size() - 1;
  }
}

void ConfinedCall::place_on_host(Home& home, PageEnd end, PagePool& pool) {
  home.pages = pool.take(static_cast<size_t>(home.bytes));
  home.pages->let_write(true);
  home.data = home.pages->begin();
  if (end == PageEnd::right) {
    const int64_t room = home.pages->end() - home.pages->begin() - home.bytes;
    home.data += room / home.alignment * home.alignment;
  }
  if (home.bytes > 0) std::memcpy(home.data, home.from, static_cast<size_t>(home.bytes));
  home.pages->let_write(home.written);
}

// What is an allocation already stays where it is.
void ConfinedCall::place_on_device(Home& home) {
  const auto first = std::find_if(operands_.begin(), operands_.end(), [&](const Operand& it) {
    return it.tensor.defined() && it.tensor.raw() == home.from;
  });
  const Storage& storage = first->tensor.storage();
  home.data = home.from;
  if (home.bytes == 0 || (storage.data == home.from && storage.bytes == home.bytes)) return;
  home.block = device_.allocate(DType::u8, {home.bytes});
  device_.upload(home.block, bytes_at(home, false).data());
  home.data = home.block.data<char>();
}

void* ConfinedCall::scratch(int64_t bytes) {
  if (!on_host_) {
    device_scratch_.push_back(device_.allocate(DType::u8, {bytes}));
    return device_scratch_.back().raw();
  }
  scratch_.push_back(pool_.take(static_cast<size_t>(bytes)));
  GuardedPages& pages = *scratch_.back();
  pages.let_write(true);
  std::memset(pages.begin(), 0xff, static_cast<size_t>(pages.end() - pages.begin()));
  const auto room = static_cast<size_t>(pages.end() - pages.begin()) - static_cast<size_t>(bytes);
  return pages.begin() + room / kScratchAlignment * kScratchAlignment;
}

bool ConfinedCall::watches(const void* p) const {
  const auto has = [&](const std::shared_ptr<GuardedPages>& pages) {
    return pages && pages->watches(p);
  };
  return std::any_of(homes_.begin(), homes_.end(), [&](const Home& it) { return has(it.pages); }) ||
         std::any_of(scratch_.begin(), scratch_.end(), has);
}

std::vector<char> ConfinedCall::bytes_at(const Home& home, bool now) const {
  std::vector<char> out(static_cast<size_t>(home.bytes));
  if (out.empty()) return out;
  char* const from = now ? home.data : home.from;
  if (on_host_) std::memcpy(out.data(), from, out.size());
  else device_.download(out.data(), bytes_tensor(device_, from, home.bytes));
  return out;
}

void ConfinedCall::give_back(const std::string& where) {
  for (const Home& home : homes_) {
    if (!home.written || home.bytes == 0 || home.data == home.from) continue;
    const std::vector<char> after = bytes_at(home, true);
    require_holes(home, after, where);
    if (on_host_) std::memcpy(home.from, after.data(), after.size());
    else device_.upload(bytes_tensor(device_, home.from, home.bytes), after.data());
  }
}

// Only elements of outputs may differ from what they were.
void ConfinedCall::require_holes(const Home& home, const std::vector<char>& after,
                                 const std::string& where) const {
  std::vector<char> rest = after;
  const std::vector<char> before = bytes_at(home, false);
  const Operand* output = nullptr;
  for (const Operand& it : operands_) {
    if (!it.written || !it.tensor.defined() || &homes_[it.home] != &home) continue;
    output = &it;
    const int64_t element = size_of(it.tensor.dtype()), start = it.data - home.data;
    const int64_t row = it.tensor.rank() > 0 ? it.tensor.dim(-1) * element : element;
    for_each_row(it.tensor, [&](int64_t offset) {
      const auto at = static_cast<size_t>(start + offset * element);
      std::memcpy(rest.data() + at, before.data() + at, static_cast<size_t>(row));
    });
  }
  if (rest == before) return;
  const auto at = std::mismatch(rest.begin(), rest.end(), before.begin()).first - rest.begin();
  throw OutOfBounds(text(where, "wrote out of bounds: byte ", at - (output->data - home.data),
                         " of output \"",
                         name_of_operand(static_cast<size_t>(output - operands_.data())),
                         "\" is between its rows, and belongs to others"));
}

std::string ConfinedCall::name_of_operand(size_t i) const {
  std::istringstream names{std::string(names_of(op_))};
  std::string name;
  for (size_t k = 0; k <= i; ++k) {
    if (!(names >> name)) return text("tensors[", i, "]");
  }
  return name;
}

std::string ConfinedCall::words(const AccessFault& fault) const {
  constexpr std::array<const char*, 3> kVerbs = {"read", "wrote", "touched memory"};
  const std::string verb = kVerbs[static_cast<size_t>(fault.verb)];
  const std::string line =
      text(" at ", fault.line, fault.in_other_thread ? ", in a thread of its own" : "");
  const char* at = static_cast<const char*>(fault.address);
  for (size_t i = 0; i < operands_.size(); ++i) {
    const Operand& it = operands_[i];
    if (!it.tensor.defined() || !homes_[it.home].pages || !homes_[it.home].pages->watches(at)) {
      continue;
    }
    const std::string operand =
        text(it.written ? "output \"" : "input \"", name_of_operand(i), '"');
    if (at < it.data)
      return text(verb, " out of bounds: ", it.data - at, " byte(s) before the start of ", operand,
                  line);
    if (at >= it.data + it.bytes)
      return text(verb, " out of bounds: byte ", at - it.data - it.bytes, " past the end of ",
                  operand, line);
    return text("wrote to its ", operand, ", byte ", at - it.data, ',', line);
  }
  return text(verb, " out of bounds: outside its scratch memory", line);
}

}  // namespace plumb
