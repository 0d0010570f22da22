// One call of an op that moves elements: each element of out is one of x, or a value; and of one
// that adds elements up where ids say.
#pragma once

#include <array>

#include "kernels/ops/ids.h"
#include "kernels/ops/table.h"

namespace plumb {

struct MoveCall {
  // Along an axis of out, element c is first + step c along axis `of` of x.
  struct Axis {
    int of = 0;
    int64_t first = 0;
    int step = 1;  // or -1
    bool wraps = false;
  };

  const OpRow& row;
  Tensor out, x;
  std::array<Axis, kMaxRank> axes{};
  double value = 0;  // of what is outside of x
  // Or, along id_axis, as an id says.
  int id_axis = -1;
  Tensor given = {};  // ids
  Tensor ids = {};    // of out's shape, of which some axes may be repeated

  MoveCall(const OpRow& row, const Tensor& out, const Tensor& x) : row(row), out(out), x(x) {
    for (int i = 0; i < out.rank(); ++i) axis(i).of = i;
  }

  Axis& axis(int i) { return axes[static_cast<size_t>(i)]; }
  const Axis& axis(int i) const { return axes[static_cast<size_t>(i)]; }
  // Where c is along the axis of x; not in [0, extent) where it is outside.
  int64_t place(int i, int64_t c) const {
    const int64_t extent = x.dim(axis(i).of), at = axis(i).first + axis(i).step * c;
    return axis(i).wraps && extent > 0 ? (at % extent + extent) % extent : at;
  }
  bool has_id_for_each() const { return id_axis >= 0 && given.shape() == out.shape(); }
  // Whether rows of out are rows of x, or the value.
  bool moves_rows() const {
    const int last = out.rank() - 1;
    return axis(last).of == last && axis(last).first == 0 && axis(last).step == 1 &&
           !axis(last).wraps && out.dim(last) == x.dim(last) && id_axis != last &&
           !has_id_for_each();
  }
};

// Which element of x, whose strides those are, each of out is: on the host.
class Moved {
 public:
  Moved(const MoveCall& call, const Shape& strides)
      : call_(call), strides_(strides), last_(call.out.rank() - 1) {}

  // Calls visit(column, offset in x, or -1) for each element of a row of out.
  template <class Visit>
  void row(int64_t row, Visit visit) const {
    const Place begin = begin_of(row);
    for (int64_t c = 0; c < call_.out.dim(last_); ++c) {
      Place at = begin;
      if (last_ != call_.id_axis) add(last_, call_.place(last_, c), at);
      visit(c, offset(at, c));
    }
  }
  // That of the first element, where a row is one of x, or the value.
  int64_t start(int64_t row) const { return offset(begin_of(row), 0); }

 private:
  struct Place {
    int64_t from = 0, ids = 0;
    bool inside = true;
  };

  Place begin_of(int64_t row) const {
    Place out;
    for (int i = last_ - 1; i >= 0; --i) {
      const int64_t c = row % call_.out.dim(i);
      row /= call_.out.dim(i);
      if (call_.id_axis >= 0) out.ids += c * call_.ids.stride(i);
      if (i != call_.id_axis) add(i, call_.place(i, c), out);
    }
    return out;
  }
  void add(int i, int64_t place, Place& at) const {
    const int of = call_.axis(i).of;
    at.from += place * strides_[of];
    at.inside = at.inside && place >= 0 && place < call_.x.dim(of);
  }
  int64_t offset(const Place& at, int64_t c) const {
    if (!at.inside) return -1;
    if (call_.id_axis < 0) return at.from;
    const int64_t id = id_at(call_.ids, at.ids + c * call_.ids.stride(last_));
    return at.from + id * strides_[call_.id_axis];
  }

  const MoveCall& call_;
  const Shape strides_;
  const int last_;
};

struct IndexAddCall {
  const OpRow& row;
  Tensor out, x;
  Tensor source;
  Tensor given;  // ids
  Tensor ids;    // of source's shape, of which all axes but one may be repeated
  int axis;

  OpId op() const { return row.id; }
};

// A tensor of one axis, which is this one of a shape, repeated along the others.
Tensor along(const Tensor& ids, int axis, const Shape& shape);

}  // namespace plumb
