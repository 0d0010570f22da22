// What may share a launch: nothing that reads or writes what another of it writes.
#include <algorithm>
#include <utility>

#include "kernels/gpu/held_back.h"

namespace plumb::PLUMB_GPU_VENDOR {

bool meet(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return false;
  const auto end = [](const Tensor& t) {
    int64_t last = 0;
    for (int i = 0; i < t.rank(); ++i) last += (t.dim(i) - 1) * t.stride(i);
    return t.data<char>() + (last + 1) * size_of(t.dtype());
  };
  return a.data<char>() < end(b) && b.data<char>() < end(a);
}

bool HeldBack::touches(const Tensor& t) const {
  const auto any = [&](std::initializer_list<const Tensor*> tensors) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const Tensor* o) { return meet(*o, t); });
  };
  if (!may_write(t)) return true;
  return chain_ && any({&chain_->x, &chain_->addend, &chain_->sum, &chain_->first.out,
                        &chain_->first.weight, &chain_->second.out, &chain_->second.weight});
}

std::vector<Tensor> RowProduct::reads() const {
  return {x,        weight,    bias,      up_weight, up_bias,          tail.cos,
          tail.sin, tail.past, tail.taps, tail.bias, tail.state_before};
}

std::vector<Tensor> RowProduct::writes() const {
  return {out, up, tail.addend_and_sum, tail.out, tail.slots, tail.state};
}

namespace {

bool meet_any(const Tensor& t, const std::vector<Tensor>& others) {
  return std::any_of(others.begin(), others.end(), [&](const Tensor& o) { return meet(t, o); });
}

bool writes_what_uses(const RowProduct& writer, const RowProduct& user) {
  const std::vector<Tensor> written = writer.writes();
  return std::any_of(written.begin(), written.end(), [&](const Tensor& t) {
    return meet_any(t, user.reads()) || meet_any(t, user.writes());
  });
}

bool same_place(const Tensor& a, const Tensor& b) {
  return a.raw() == b.raw() && a.numel() == b.numel();
}

// [1, H, 1, D]: the heads of one token, side by side.
bool is_row_of_heads(const Tensor& t) {
  return t.rank() == 4 && t.dim(0) == 1 && t.dim(2) == 1 &&
         (t.dim(1) == 1 || t.stride(1) == t.dim(3));
}

}  // namespace

bool HeldBack::joins(const RowProduct& product) const {
  if (products_.empty()) return true;
  if (products_.size() == size_t{kMostProducts} ||
      products_.front().x.dtype() != product.x.dtype() ||
      products_.front().is_short() != product.is_short()) {
    return false;
  }
  return std::none_of(products_.begin(), products_.end(), [&](const RowProduct& held) {
    return writes_what_uses(held, product) || writes_what_uses(product, held);
  });
}

void HeldBack::one_row(RowProduct product, bool settled) {
  if (chain_ || !joins(product)) release();
  settled_ = settled && (products_.empty() || settled_);
  products_.push_back(std::move(product));
}

// The product whose whole row this is, if nothing is done to it yet.
RowProduct* HeldBack::product_of(const Tensor& row) {
  for (RowProduct& p : products_) {
    const bool plain = p.tail.kind == RowTail::Kind::none && !p.tail.slots.defined();
    if (plain && same_place(p.row(), row) && p.out.dtype() == row.dtype()) return &p;
  }
  return nullptr;
}

bool HeldBack::may_write(const Tensor& t) const {
  return std::none_of(products_.begin(), products_.end(), [&](const RowProduct& p) {
    return meet_any(t, p.reads()) || meet_any(t, p.writes());
  });
}

bool HeldBack::may_read(const Tensor& t) const {
  return std::none_of(products_.begin(), products_.end(),
                      [&](const RowProduct& p) { return meet_any(t, p.writes()); });
}

bool HeldBack::gate(const Tensor& out, const Tensor& gate, const Tensor& up, Activation function) {
  if (products_.empty() || out.dim(-1) != out.numel() || !may_write(out)) return false;
  const auto finish = [&](RowProduct& p) {
    p.tail.kind = RowTail::Kind::gate;
    p.tail.function = function;
    p.tail.out = out;
  };
  RowProduct* first = product_of(gate);
  RowProduct* second = product_of(up);
  if (first && second && first != second) {
    const auto sums = [](const RowProduct* p) { return p->tail.addend_and_sum.defined(); };
    if (first->weight.stride(0) != second->weight.stride(0) || first->x.raw() != second->x.raw() ||
        first->x.dim(-1) != second->x.dim(-1) || sums(first) || sums(second)) {
      return false;
    }
    first->up = second->out;
    first->up_weight = second->weight;
    first->up_bias = second->bias;
    finish(*first);
    products_.erase(products_.begin() + (second - products_.data()));
    return true;
  }
  for (RowProduct& p : products_) {
    const Tensor& row = p.row();
    const bool halves = row.numel() == 2 * gate.numel() && row.raw() == gate.raw() &&
                        row.data<char>() + gate.bytes() == up.data<char>();
    if (!halves || product_of(row) != &p) continue;
    finish(p);
    return true;
  }
  return false;
}

bool HeldBack::rotate(const Tensor& out, const Tensor& x, const Tensor& cos, const Tensor& sin) {
  RowProduct* p = product_of(x);
  if (!p || !same_place(out, x) || !is_row_of_heads(x) || !is_row_of_heads(out) ||
      cos.dim(2) != x.dim(3) || !may_read(cos) || !may_read(sin)) {
    return false;
  }
  p->tail.kind = RowTail::Kind::rotate;
  p->tail.head_dim = x.dim(3);
  p->tail.cos = cos;
  p->tail.sin = sin;
  return true;
}

bool HeldBack::add_to_product(const Tensor& sum, const Tensor& a, const Tensor& b) {
  constexpr int64_t kShort = 512;
  for (const auto& [row, other] : {std::pair{a, b}, std::pair{b, a}}) {
    RowProduct* p = product_of(row);
    if (!p || p->tail.addend_and_sum.defined() || p->x.dim(-1) > kShort ||
        !same_place(other, sum) || sum.dim(-1) != sum.numel() || !may_write(sum)) {
      continue;
    }
    p->tail.addend_and_sum = sum;
    return true;
  }
  return false;
}

// The product of whose row this is a part, if nothing is done to it yet.
RowProduct* HeldBack::product_around(const Tensor& part) {
  for (RowProduct& p : products_) {
    const Tensor& row = p.row();
    if (part.data<char>() >= row.data<char>() && part.dim(-1) == part.numel() &&
        part.data<char>() + part.bytes() <= row.data<char>() + row.bytes()) {
      return product_of(row) == &p ? &p : nullptr;
    }
  }
  return nullptr;
}

bool HeldBack::convolve(const Tensor& out, const Tensor& state, const Tensor& x, const Tensor& taps,
                        const Tensor& bias, const Tensor& state_before,
                        std::optional<Activation> function) {
  RowProduct* p = product_around(x);
  const bool in_place = state_before.raw() == state.raw();
  if (!p || out.dim(-1) != out.numel() || !may_write(out) || !may_write(state) || !may_read(taps) ||
      (bias.defined() && !may_read(bias)) || meet(out, state) || meet(out, state_before) ||
      (!in_place && (!may_read(state_before) || meet(state, state_before)))) {
    return false;
  }
  for (const Tensor& written : {out, state}) {
    if (meet(written, taps) || meet(written, bias)) return false;
  }
  p->tail.kind = RowTail::Kind::convolve;
  p->tail.function = function;
  p->tail.out = out;
  p->tail.taps = taps;
  p->tail.bias = bias;
  p->tail.state_before = state_before;
  p->tail.state = state;
  p->tail.first_channel = x.data<char>() - p->row().data<char>();
  p->tail.first_channel /= size_of(x.dtype());
  return true;
}

bool HeldBack::store(const Tensor& key_slots, const Tensor& value_slots, const Tensor& k,
                     const Tensor& v, const Tensor& past, int64_t window) {
  const auto find = [&](const Tensor& row) -> RowProduct* {
    for (RowProduct& p : products_) {
      const bool fits = p.tail.kind == RowTail::Kind::none ||
                        (p.tail.kind == RowTail::Kind::rotate && p.tail.head_dim == row.dim(3));
      if (fits && !p.tail.slots.defined() && same_place(p.row(), row)) return &p;
    }
    return nullptr;
  };
  RowProduct* keys = find(k);
  RowProduct* values = find(v);
  if (!keys || !values || keys == values || !is_row_of_heads(k) || !is_row_of_heads(v) ||
      !may_write(key_slots) || !may_write(value_slots) || meet(key_slots, value_slots) ||
      !may_read(past) || meet(past, key_slots) || meet(past, value_slots)) {
    return false;
  }
  const auto store = [&](RowProduct& p, const Tensor& slots) {
    p.tail.slots = slots;
    p.tail.past = past;
    p.tail.head_dim = slots.dim(3);
    p.tail.window = window;
  };
  store(*keys, key_slots);
  store(*values, value_slots);
  return true;
}

}  // namespace plumb::PLUMB_GPU_VENDOR
