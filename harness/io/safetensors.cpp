#include "harness/io/safetensors.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>

#include "harness/io/json.h"
#include "harness/io/printable.h"
#include "harness/io/utf8.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kLargestHeader = 100'000'000;
constexpr int64_t kMostHeaderValues = 1'000'000;  // about 90,000 tensors
constexpr std::string_view kMetadata = "__metadata__";

// "BF16" of "bf16", "F8_E4M3" of "f8_e4m3".
using DTypeNames = std::array<std::string, kDTypes>;
const DTypeNames& dtype_names() {
  static const DTypeNames names = [] {
    DTypeNames out;
    for (size_t i = 0; i < out.size(); ++i) {
      for (const char c : name_of(static_cast<DType>(i))) {
        out[i] += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      }
    }
    return out;
  }();
  return names;
}

DType read_dtype(JsonValue value) {
  const DTypeNames& names = dtype_names();
  const auto* found = std::find(names.begin(), names.end(), value.string());
  if (found == names.end()) {
    std::string known;
    for (const std::string& name : names) known += ' ' + name;
    value.fail("the dtype ", printable(value.string()), " is unknown; known are", known);
  }
  return static_cast<DType>(found - names.begin());
}

Shape read_shape(JsonValue value) {
  if (value.items(), value.size() > kMaxRank) {
    value.fail("the rank is ", value.size(), ", expected at most ", kMaxRank);
  }
  std::vector<int64_t> extents;
  for (const JsonValue extent : value.items()) extents.push_back(extent.integer(0));
  return Shape(extents);
}

// Bytes of a shape by checked arithmetic; extents of 0 do not hide an overflow of the others.
int64_t byte_count(JsonValue value, DType dtype, const Shape& shape) {
  int64_t product = size_of(dtype);
  bool empty = false;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    empty |= shape[axis] == 0;
    if (__builtin_mul_overflow(product, std::max(shape[axis], int64_t{1}), &product)) {
      value.fail("the shape ", shape, " of ", name_of(dtype), " has more than 2^63 - 1 bytes");
    }
  }
  return empty ? 0 : product;
}

SafetensorsEntry read_entry(JsonValue value, int64_t payload_bytes) {
  value.only({"dtype", "shape", "data_offsets"});
  SafetensorsEntry entry{read_dtype(value.at("dtype")), read_shape(value.at("shape")), 0, 0};
  const JsonValue offsets = value.at("data_offsets");
  std::array<int64_t, 2> range{};
  size_t count = 0;
  for (const JsonValue offset : offsets.items()) {
    if (count < range.size()) range[count] = offset.integer(0, payload_bytes);
    ++count;
  }
  if (count != range.size()) offsets.fail("has ", count, " numbers, expected 2");
  entry.begin = range[0];
  entry.end = range[1];
  if (entry.begin > entry.end)
    offsets.fail("ends at ", entry.end, ", before it begins at ", entry.begin);
  const int64_t expected = byte_count(value.at("shape"), entry.dtype, entry.shape);
  if (entry.end - entry.begin != expected) {
    offsets.fail("spans ", entry.end - entry.begin, " bytes, but ", entry.shape, ' ',
                 name_of(entry.dtype), " has ", expected);
  }
  return entry;
}

}  // namespace

bool is_sane_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName &&
         std::none_of(name.begin(), name.end(),
                      [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

std::string_view safetensors_name(DType dtype) { return dtype_names()[static_cast<size_t>(dtype)]; }

SafetensorsFile::SafetensorsFile(File file) : file_(std::move(file)) {
  const auto fail = [this](const auto&... parts) {
    throw BadInput(text(file_.name(), ": ", parts...));
  };
  if (file_.size() < kLengthBytes) {
    fail("has ", file_.size(), " bytes, expected at least 8 (the length of the header)");
  }
  std::array<unsigned char, kLengthBytes> bytes{};
  file_.read(0, bytes.data(), kLengthBytes);
  uint64_t length = 0;
  for (size_t i = bytes.size(); i-- > 0;) length = length << 8 | bytes[i];
  const int64_t rest = file_.size() - kLengthBytes;
  if (length == 0) fail("byte 0: the header's length is 0");
  if (length > static_cast<uint64_t>(rest)) {
    fail("byte 0: the header's length is ", length, ", but only ", rest, " bytes follow");
  }
  if (length > static_cast<uint64_t>(kLargestHeader)) {
    fail("byte 0: the header's length is ", length, ", more than the ", kLargestHeader,
         " that are allowed");
  }
  std::string header(length, '\0');
  file_.read(kLengthBytes, header.data(), static_cast<int64_t>(length));
  if (header.front() != '{')
    fail("byte 8: the header starts with ", printable(header.substr(0, 1)), ", expected {");
  payload_ = kLengthBytes + static_cast<int64_t>(length);

  JsonLimits limits;
  limits.bytes = kLargestHeader;
  limits.values = kMostHeaderValues;
  const auto document = JsonDocument::parse(file_.name() + ": header", std::move(header), limits);
  for (const auto& [name, value] : document->root().members()) {
    if (name == kMetadata) {
      if (value.is_null()) continue;  // no metadata, as the safetensors library has it
      for (const auto& [key, note] : value.members()) metadata_.emplace(key, note.string());
      continue;
    }
    if (!is_sane_name(name)) {
      value.fail("the tensor's name has ", name.size(), " bytes, expected 1 to ", kLongestName,
                 " and no control characters");
    }
    entries_.emplace(name, read_entry(value, file_.size() - payload_));
  }
  check_layout();
}

// In the order of the file, each tensor begins where the one before it ends.
void SafetensorsFile::check_layout() const {
  using Item = std::pair<const std::string, SafetensorsEntry>;
  std::vector<const Item*> order;
  order.reserve(entries_.size());
  for (const Item& item : entries_) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  int64_t position = 0;
  for (const Item* item : order) {
    const auto& [begin, end] = std::pair(item->second.begin, item->second.end);
    if (begin != position) {
      throw BadInput(text(file_.name(), ": the tensor ", printable(item->first), " begins at ",
                          begin, ", ",
                          begin > position ? "leaving a hole from " : "overlapping what ends at ",
                          position, " (byte ", payload_ + begin, ')'));
    }
    position = end;
  }
  if (position != file_.size() - payload_) {
    throw BadInput(text(file_.name(), ": the tensors end at ", position, ", but ",
                        file_.size() - payload_, " bytes follow the header (byte ",
                        payload_ + position, ')'));
  }
}

Tensor SafetensorsFile::read(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw BadInput(text(file_.name(), ": there is no tensor ", printable(name)));
  }
  const SafetensorsEntry& entry = found->second;
  const Tensor out = host_tensor(entry.dtype, entry.shape);
  file_.read(payload_ + entry.begin, out.raw(), entry.end - entry.begin);
  return out;
}

namespace {

// Rows one after the other, whatever the strides of the outer axes.
void write_rows(AtomicFile& file, const Tensor& tensor) {
  if (tensor.contiguous())
    return file.write({tensor.data<char>(), static_cast<size_t>(tensor.bytes())});
  const int64_t row = tensor.dim(-1) * size_of(tensor.dtype());
  std::string rows;
  for_each_row(tensor, [&](int64_t offset) {
    const char* from = static_cast<const char*>(tensor.raw()) + offset * size_of(tensor.dtype());
    rows.append(from, static_cast<size_t>(row));
    if (rows.size() > size_t{1} << 20) {
      file.write(rows);
      rows.clear();
    }
  });
  file.write(rows);
}

}  // namespace

std::string safetensors_header(const std::vector<SafetensorsItem>& items,
                               const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  int64_t end = 0;
  for (const auto& [name, dtype, shape] : items) {
    const bool valid =
        is_sane_name(name) && name != kMetadata && utf8_valid_prefix(name) == name.size();
    require(valid && !header.contains(name), "write_safetensors", "the name ", printable(name),
            " appears twice or cannot be a tensor's");
    const int64_t begin = end;
    end += shape.numel() * size_of(dtype);
    auto& to = header[name] = {{"dtype", safetensors_name(dtype)},
                               {"shape", nlohmann::ordered_json::array()},
                               {"data_offsets", {begin, end}}};
    for (int axis = 0; axis < shape.rank(); ++axis) to["shape"].push_back(shape[axis]);
  }
  std::string out = header.dump();
  out.resize((out.size() + 7) / 8 * 8, ' ');
  const uint64_t length = out.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + out;
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors) {
  AtomicFile file(path);
  write_safetensors(file, tensors);
}

void write_safetensors(AtomicFile& file, const NamedTensors& tensors) {
  // The largest items first, so that each tensor is aligned to its item size.
  std::vector<const std::pair<std::string, Tensor>*> order;
  for (const auto& item : tensors) order.push_back(&item);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return size_of(a->second.dtype()) > size_of(b->second.dtype());
  });
  std::vector<SafetensorsItem> items;
  for (const auto* item : order) {
    items.push_back({item->first, item->second.dtype(), item->second.shape()});
  }
  file.write(safetensors_header(items));
  for (const auto* item : order) write_rows(file, item->second);
  file.commit();
}

}  // namespace plumb::harness
