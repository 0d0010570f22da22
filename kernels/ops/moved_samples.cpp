#include "kernels/ops/moved_samples.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace plumb {
namespace {

class MoveMaker {
 public:
  MoveMaker(const std::function<int(int)>& choose, int64_t extent)
      : choose_(choose), extent_(extent) {
    constexpr int64_t kOuter[] = {2, 3, 5}, kInner[] = {2, 3, 8, 9, 31, 64, 65, 257};
    const int rank = several() ? 1 + choose_(4) : 1 + choose_(2);
    for (int i = 0; i < rank; ++i) {
      x_.push_back(!several() ? extent_ : i + 1 < rank ? kOuter[choose_(3)] : kInner[choose_(8)]);
    }
    axis_ = choose_(rank);
  }

  MovedSample of(OpId op) {
    switch (op) {
      case OpId::index_select: return of_ids({with(count()), x(), {count()}});
      case OpId::gather: {
        const Shape ids = fewer();
        return of_ids({ids, x(), ids});
      }
      case OpId::index_add: return of_ids({x(), x(), {count()}, with(count())});
      case OpId::scatter_add: {
        const Shape ids = fewer();
        return of_ids({x(), x(), ids, more(ids)});
      }
      case OpId::concat: return {{with(at(axis_) + count()), x(), with(count())}, axis_};
      case OpId::permute: return permuted();
      case OpId::pad: return padded();
      case OpId::flip: return flipped();
      case OpId::roll: return rolled();
      default: return {{x()}};
    }
  }

 private:
  bool several() const { return extent_ < 0; }
  int rank() const { return static_cast<int>(x_.size()); }
  int64_t at(int axis) const { return x_[static_cast<size_t>(axis)]; }
  Shape x() const { return Shape(x_); }
  Shape with(int64_t extent) const {
    Shape out = x();
    out.set(axis_, extent);
    return out;
  }
  // Along the axis.
  int64_t count() {
    constexpr int64_t kCounts[] = {1, 2, 3, 5, 9, 33};
    if (count_ < 0) count_ = several() ? kCounts[choose_(6)] : extent_;
    return count_;
  }
  Shape fewer() {
    Shape out = with(count());
    for (int i = 0; several() && i < rank(); ++i) {
      if (i != axis_) out.set(i, std::max<int64_t>(1, at(i) - choose_(2)));
    }
    return out;
  }
  Shape more(Shape shape) {
    for (int i = 0; several() && i < rank(); ++i) shape.set(i, shape[i] + choose_(2));
    return shape;
  }

  MovedSample of_ids(std::vector<Shape> shapes) {
    return {std::move(shapes), axis_, {}, {}, at(axis_)};
  }
  MovedSample permuted() {
    MovedSample out;
    std::vector<int64_t> order(x_.size()), shape;
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<size_t>(choose_(static_cast<int>(i)))]);
    }
    for (int i = 0; i < rank(); ++i) {
      out.per_axis[i] = order[static_cast<size_t>(i)];
      shape.push_back(at(static_cast<int>(out.per_axis[i])));
    }
    out.shapes = {Shape(shape), x()};
    return out;
  }
  MovedSample padded() {
    MovedSample out;
    Shape shape = x();
    for (int i = 0; several() && i < rank(); ++i) {
      out.per_axis[i] = choose_(5) - 1;
      shape.set(i, std::max<int64_t>(1, at(i) + out.per_axis[i] + choose_(5) - 1));
    }
    out.shapes = {shape, x()};
    return out;
  }
  MovedSample flipped() {
    MovedSample out{{x(), x()}};
    for (int i = 0; i < rank(); ++i) {
      if (i == axis_ || choose_(2) == 0) out.axes.set |= 1u << i;
    }
    return out;
  }
  MovedSample rolled() {
    MovedSample out{{x(), x()}};
    for (int i = 0; i < rank(); ++i) out.per_axis[i] = choose_(15) - 7;
    return out;
  }

  const std::function<int(int)>& choose_;
  const int64_t extent_;
  std::vector<int64_t> x_;
  int axis_ = 0;
  int64_t count_ = -1;
};

}  // namespace

MovedSample moved_sample(OpId op, const std::function<int(int)>& choose, int64_t extent) {
  return MoveMaker(choose, extent).of(op);
}

}  // namespace plumb
