// Every op's gradient rule against central differences of the op in float64, on calls made from its
// row; and that a wrong number in what a rule issues is seen.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/gradients/rules.h"
#include "kernels/gradients/tape.h"
#include "kernels/ops/samples.h"
#include "tests/catch.h"

namespace plumb {
namespace {

using Tensors = std::vector<Tensor>;
using Vector = std::vector<double>;

constexpr int64_t kMostElements = 40000;  // of a sample: others take too long

// Passes every call on; one of those that come after `armed` has an output that is 1 % too large.
class WrongOps final : public Ops {
 public:
  explicit WrongOps(Ops& inner) : Ops(inner.device()), inner_(inner) {}

  Contract contract(OpId op, DType storage) const override { return inner_.contract(op, storage); }
  bool overrides(OpId op) const override { return inner_.overrides(op); }

  int wrong = -1;  // which call; counted from the arming on
  std::optional<int> seen;
  std::string name;     // of the op
  bool is_zero = true;  // what it gave

 private:
  void do_call(const OpCall& call) override {
    call.on(inner_);
    if (!seen || call.op == OpId::fill || (*seen)++ != wrong) return;  // 1 % of zero is nothing
    name = name_of(call.op);
    for (const Tensor& out : call.outputs()) {
      if (!out.defined() || !is_floating(out.dtype())) continue;
      is_zero = is_zero && largest(out) == 0;
      inner_.scale(out, out, 1.01);
    }
  }
  double largest(const Tensor& t) {
    if (t.numel() == 0) return 0;
    Arena::Scope scope(inner_.arena());
    const Tensor dense = inner_.arena().take(t.dtype(), t.shape());
    inner_.unary(OpId::abs, dense, t);
    Vector values(static_cast<size_t>(t.numel()));
    device().download(values.data(), dense);
    return *std::max_element(values.begin(), values.end());
  }

  Ops& inner_;
};

bool has_no_gradient(const OpRow& row, size_t operand) {
  const std::string_view name = row.operands.operands.at(operand).name;
  return name == "mask" || name == "explicit_mask" || name == "cos" || name == "sin";
}

// One sample in float64 on the oracle, as a function of its floating inputs.
class Case {
 public:
  Case(Device& device, const OpSample& sample)
      : device_(device), call_(sample.call), engine_(7), row_(row_of(sample.call.op)) {
    for (const Tensor& host : call_.tensors()) tensors_.push_back(placed(host));
    call_ = call_.with(tensors_);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Tensor& t = tensors_[i];
      if (!t.defined() || !is_floating(t.dtype())) continue;
      if (call_.writes(i)) {
        outputs_.push_back(t);
        cotangents_.push_back(like(t, normal(t.numel())));
      } else if (!has_no_gradient(row_, i)) {
        inputs_.push_back(t);
        values_.push_back(read(t));
        directions_.push_back(normal(t.numel()));
      }
    }
  }

  bool is_of_use() const { return !inputs_.empty() && !outputs_.empty(); }
  size_t inputs() const { return inputs_.size(); }

  // Of a loss, the sum of outputs times cotangents, along each input's direction; `size` is that of
  // the terms.
  Vector by_tape(Ops& ops, const std::function<void()>& armed, Vector& size) {
    Tape tape(ops);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!call_.writes(i)) tape.hold(tensors_[i]);
    }
    call_.on(tape);
    for (size_t i = 0; i < outputs_.size(); ++i) tape.seed(outputs_[i], cotangents_[i]);
    armed();
    tape.run_backward();
    Vector out;
    size.clear();
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Tensor g = device_.allocate(DType::f64, inputs_[i].shape());
      tape.read_gradient(g, inputs_[i]);
      double sum = 0, terms = 0;
      const Vector values = read(g);
      for (size_t k = 0; k < values.size(); ++k) {
        sum += values[k] * directions_[i][k];
        terms += std::fabs(values[k] * directions_[i][k]);
      }
      out.push_back(sum);
      size.push_back(terms);
    }
    return out;
  }

  Vector by_differences() {
    constexpr double kStep = 1e-5;
    Vector out;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const auto moved = [&](double by) {
        Vector x = values_[i];
        for (size_t k = 0; k < x.size(); ++k) x[k] += by * directions_[i][k];
        write(inputs_[i], x);
        return loss();
      };
      const Vector up = moved(kStep), down = moved(-kStep);
      write(inputs_[i], values_[i]);
      double sum = 0;  // of differences: the terms are much alike
      for (size_t k = 0; k < up.size(); ++k) sum += up[k] - down[k];
      out.push_back(sum / (2 * kStep));
    }
    return out;
  }

 private:
  Vector normal(int64_t count) {
    std::normal_distribution<double> draw;
    Vector out(static_cast<size_t>(count));
    for (double& x : out) x = draw(engine_);
    return out;
  }
  Tensor like(const Tensor& t, const Vector& values) {
    const Tensor out = device_.allocate(t.dtype(), t.shape());
    write(out, values);
    return out;
  }
  Tensor placed(const Tensor& host) {
    if (!host.defined()) return {};
    if (!is_floating(host.dtype())) {
      const Tensor out = device_.allocate(host.dtype(), host.shape());
      device_.upload(out, host.raw());
      return out;
    }
    const Tensor out = device_.allocate(DType::f64, host.shape());
    Vector values(static_cast<size_t>(host.numel()));
    for (size_t i = 0; i < values.size(); ++i) {
      const double x =
          load(host.dtype(), host.data<char>() + static_cast<int64_t>(i) * size_of(host.dtype()));
      values[i] = std::isfinite(x) ? x : std::isnan(x) ? 0.5 : std::copysign(3, x);
      if (call_.op == OpId::div) values[i] += std::copysign(0.5, values[i]);  // of no small divisor
    }
    write(out, values);
    return out;
  }
  void write(const Tensor& t, const Vector& values) { device_.upload(t, values.data()); }
  Vector read(const Tensor& t) {
    Vector out(static_cast<size_t>(t.numel()));
    device_.download(out.data(), t);
    return out;
  }
  // Its terms.
  Vector loss() {
    call_.on(device_.ops());
    Vector out;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const Vector y = read(outputs_[i]), g = read(cotangents_[i]);
      for (size_t k = 0; k < y.size(); ++k) out.push_back(y[k] * g[k]);
    }
    return out;
  }

  Device& device_;
  OpCall call_;
  std::mt19937 engine_;
  const OpRow& row_;
  Tensors tensors_, inputs_, outputs_, cotangents_;
  std::vector<Vector> values_, directions_;
};

bool agree(const Vector& made, const Vector& expected, const Vector& size) {
  for (size_t i = 0; i < made.size(); ++i) {
    const double allowed = 1e-6 * (size[i] + std::fabs(expected[i])) + 1e-7;
    if (!(std::fabs(made[i] - expected[i]) <= allowed)) return false;
  }
  return true;
}

template <class Visit>
void for_each_case(OpId op, Device& device, Visit visit) {
  for (const OpSample& sample : samples_of(op, DType::f32)) {
    int64_t elements = 0;
    for (const Tensor& t : sample.call.tensors()) elements += t.defined() ? t.numel() : 0;
    if (elements > kMostElements) continue;
    Case made(device, sample);
    if (made.is_of_use()) visit(sample.name, made);
  }
}

std::vector<OpId> ops_with_gradients() {
  std::vector<OpId> out;
  for (int i = 0; i < kOpCount; ++i) {
    const GradientRule* rule = gradient_rule(static_cast<OpId>(i));
    if (rule && rule->run) out.push_back(static_cast<OpId>(i));
  }
  return out;
}

TEST_CASE("rules give the gradients that differences show") {
  const auto device = open_device("oracle", 1);
  int64_t cases = 0;
  for (const OpId op : ops_with_gradients()) {
    int64_t of_op = 0;
    for_each_case(op, *device, [&](const std::string& name, Case& made) {
      Vector size;
      const Vector g = made.by_tape(
                       device->ops(), [] {}, size),
                   expected = made.by_differences();
      INFO(name_of(op) << ' ' << name);
      for (size_t i = 0; i < g.size(); ++i) {
        if (std::isnan(expected[i])) continue;  // the loss of no labels
        INFO("input " << i << ": " << g[i] << ", differences give " << expected[i] << ", terms "
                      << size[i]);
        CHECK(agree({g[i]}, {expected[i]}, {size[i]}));
      }
      ++of_op;
    });
    INFO(name_of(op));
    CHECK(of_op > 2);
    cases += of_op;
  }
  CHECK(cases > 200);
}

TEST_CASE("a wrong number in any op on the way back is seen") {
  const auto device = open_device("oracle", 1);
  int64_t planted = 0, seen = 0;
  std::string missed;
  for (const OpId op : ops_with_gradients()) {
    int tried = 0;
    for_each_case(op, *device, [&](const std::string& name, Case& made) {
      if (++tried > 3) return;
      const Vector expected = made.by_differences();
      for (int wrong = 0;; ++wrong) {
        WrongOps ops(device->ops());
        ops.wrong = wrong;
        Vector size;
        const Vector g = made.by_tape(
            ops, [&] { ops.seen = 0; }, size);
        if (ops.name.empty()) break;
        if (ops.is_zero) continue;
        ++planted;
        const bool found = !agree(g, expected, size);
        seen += found;
        if (!found) missed += std::string(name_of(op)) + ' ' + name + ": " + ops.name + '\n';
      }
    });
  }
  INFO(missed);
  CHECK(planted > 100);
  // The others change no gradient: of softmax over one class, of a state that one tap cannot see.
  CHECK(seen >= planted * 98 / 100);
}

}  // namespace
}  // namespace plumb
