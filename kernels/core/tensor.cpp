#include "kernels/core/tensor.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <new>

#include "kernels/core/error.h"

namespace plumb {
namespace {

class HostStorage final : public Storage {
 public:
  HostStorage(void* data, int64_t bytes, const void* owner) : Storage(data, bytes, owner) {}
  ~HostStorage() override { std::free(data); }
};

// A device's large tensors begin at a huge page and ask for such: fewer misses of the TLB. Others
// live too shortly for what the kernel does to find such pages, in each of many threads.
constexpr int64_t kHugePage = int64_t{1} << 21;

void ask_for_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#ifdef __linux__
  const int64_t whole = bytes / kHugePage * kHugePage;  // never more memory than was asked for
  if (whole > 0) madvise(data, static_cast<size_t>(whole), MADV_HUGEPAGE);  // or stays as it was
#endif
}

}  // namespace

Shape::Shape(std::initializer_list<int64_t> extents) : Shape(std::vector<int64_t>(extents)) {}

Shape::Shape(const std::vector<int64_t>& extents) : rank_(static_cast<int>(extents.size())) {
  require(extents.size() <= kMaxRank, "shape", "rank ", extents.size(), " exceeds ", kMaxRank);
  for (size_t i = 0; i < extents.size(); ++i) {
    require(extents[i] >= 0, "shape", "extent ", i, " is ", extents[i], ", must be at least 0");
    extents_[i] = extents[i];
  }
}

void Shape::refuse(int axis) const {
  throw UsageError(text("[shape] axis ", axis, " of a shape of rank ", rank_));
}

int64_t Shape::numel() const {
  int64_t product = 1;
  for (int i = 0; i < rank_; ++i) {
    require(!__builtin_mul_overflow(product, extents_[static_cast<size_t>(i)], &product), "shape",
            *this, " has more than 2^63 - 1 elements");
  }
  return product;
}

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ && extents_ == other.extents_;
}

std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (int i = 0; i < shape.rank(); ++i) out << (i ? ", " : "") << shape[i];
  return out << ']';
}

std::shared_ptr<Storage> host_storage(int64_t bytes, const void* owner) {
  require(bytes >= 0 && bytes < INT64_MAX - kTensorAlignment, "allocate", bytes, " bytes");
  const int64_t padded = (bytes / kTensorAlignment + 1) * kTensorAlignment;
  void* data = nullptr;
  const bool huge = owner && bytes >= kHugePage;
  const int error = posix_memalign(&data, static_cast<size_t>(huge ? kHugePage : kTensorAlignment),
                                   static_cast<size_t>(padded));
  require<DeviceError>(error == 0, "allocate", "no memory for ", bytes, " bytes");
  if (huge) ask_for_huge_pages(data, bytes);
  return std::make_shared<HostStorage>(data, bytes, owner);
}

Tensor::Tensor(std::shared_ptr<Storage> storage, DType dtype, const Shape& shape,
               int64_t byte_offset)
    : storage_(std::move(storage)),
      dtype_(dtype),
      shape_(shape),
      strides_(shape),
      byte_offset_(byte_offset) {
  uint64_t stride = 1;  // beyond int64 of a shape that is refused below, or has no elements
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides_.set(i, static_cast<int64_t>(stride));
    stride *= static_cast<uint64_t>(std::max<int64_t>(shape[i], 1));
  }
  int64_t needed = 0;
  require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &needed) && byte_offset >= 0 &&
              byte_offset <= storage_->bytes && needed <= storage_->bytes - byte_offset,
          "tensor", shape, ' ', name_of(dtype), " at byte ", byte_offset,
          " does not fit a storage of ", storage_->bytes, " bytes");
}

bool Tensor::contiguous() const {
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (dim(i) != 1 && stride(i) != expected) return false;
    expected *= dim(i);
  }
  return true;
}

Tensor Tensor::view(const Shape& shape) const {
  require(contiguous(), "view", "the tensor of shape ", shape_, " is not contiguous");
  require(shape.numel() == numel(), "view", shape, " has ", shape.numel(), " elements, the tensor ",
          numel());
  return Tensor(storage_, dtype_, shape, byte_offset_);
}

Tensor Tensor::reinterpret(DType dtype, const Shape& shape) const {
  const Tensor out(storage_, dtype, shape, byte_offset_);
  require(contiguous() && out.bytes() == bytes(), "reinterpret", shape, ' ', name_of(dtype),
          " has ", out.bytes(), " bytes, the tensor ", bytes());
  return out;
}

Tensor Tensor::slice(int axis, int64_t begin, int64_t end) const {
  require(0 <= begin && begin <= end && end <= dim(axis), "slice", '[', begin, ", ", end,
          ") of axis ", axis, " with extent ", dim(axis));
  Tensor out = *this;
  out.shape_.set(axis, end - begin);
  out.byte_offset_ += begin * stride(axis) * size_of(dtype_);
  return out;
}

Tensor Tensor::every(int axis, int64_t first, int64_t step) const {
  const int at = axis < 0 ? axis + rank() : axis;
  require(at != rank() - 1 && step > 0 && 0 <= first && first < dim(axis), "every", "element ",
          first, ", step ", step, " of axis ", axis, " of shape ", shape_);
  Tensor out = slice(axis, first, dim(axis));
  out.shape_.set(at, (dim(axis) - first + step - 1) / step);
  out.strides_.set(at, stride(axis) * step);
  return out;
}

Tensor Tensor::split(int axis, int64_t inner) const {
  const int at = axis < 0 ? axis + rank() : axis;
  require(inner > 0 && dim(at) % inner == 0 && rank() < kMaxRank, "split", "axis ", axis,
          " of shape ", shape_, " into parts of ", inner);
  std::vector<int64_t> extents, strides;
  for (int i = 0; i < rank(); ++i) {
    extents.push_back(i == at ? dim(i) / inner : dim(i));
    strides.push_back(i == at ? stride(i) * inner : stride(i));
    if (i != at) continue;
    extents.push_back(inner);
    strides.push_back(stride(i));
  }
  Tensor out = *this;
  out.shape_ = Shape(extents);
  out.strides_ = Shape(strides);
  return out;
}

Tensor Tensor::with_axis(int axis) const {
  require(axis >= 0 && axis <= rank() && rank() < kMaxRank, "with_axis", "axis ", axis,
          " of shape ", shape_);
  std::vector<int64_t> extents, strides;
  for (int i = 0; i <= rank(); ++i) {
    if (i == axis) extents.push_back(1), strides.push_back(1);
    if (i < rank()) extents.push_back(dim(i)), strides.push_back(stride(i));
  }
  Tensor out = *this;
  out.shape_ = Shape(extents);
  out.strides_ = Shape(strides);
  return out;
}

Tensor Tensor::transpose(int a, int b) const {
  const int last = rank() - 1;
  const int from = a < 0 ? a + rank() : a;
  const int to = b < 0 ? b + rank() : b;
  require(from != last && to != last, "transpose", "axes ", a, " and ", b, " of rank ", rank(),
          ": the last axis must stay last");
  Tensor out = *this;
  out.shape_.set(from, dim(to));
  out.shape_.set(to, dim(from));
  out.strides_.set(from, stride(to));
  out.strides_.set(to, stride(from));
  return out;
}

Tensor Tensor::expand(int axis, int64_t extent) const {
  require(dim(axis) == 1 || dim(axis) == extent, "expand", "axis ", axis, " of extent ", dim(axis),
          " to ", extent);
  Tensor out = *this;
  if (dim(axis) != extent) {
    out.shape_.set(axis, extent);
    out.strides_.set(axis, 0);
  }
  return out;
}

Tensor Tensor::broadcast(const Shape& shape) const {
  const int missing = shape.rank() - rank();
  require(missing >= 0, "broadcast", shape_, " to ", shape);
  Tensor out = *this;
  out.shape_ = out.strides_ = shape;
  for (int i = 0; i < shape.rank(); ++i) {
    const int64_t extent = i < missing ? 1 : dim(i - missing);
    require(extent == 1 || extent == shape[i], "broadcast", shape_, " to ", shape);
    out.strides_.set(i, extent == shape[i] && i >= missing ? stride(i - missing) : 0);
  }
  return out;
}

Tensor Tensor::in(const Tensor& whole) const {
  require(whole.contiguous() && whole.bytes() >= storage_->bytes, "in", whole.bytes(),
          " bytes for a storage of ", storage_->bytes);
  Tensor out = *this;
  out.storage_ = whole.storage_;
  out.byte_offset_ += whole.byte_offset_;
  return out;
}

Tensor host_tensor(DType dtype, const Shape& shape) {
  int64_t bytes = 0;
  require(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes), "allocate", shape, ' ',
          name_of(dtype), " is larger than 2^63 bytes");
  return Tensor(host_storage(bytes), dtype, shape);
}

}  // namespace plumb
