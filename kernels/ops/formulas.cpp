// Formulas as text: evaluated with an arithmetic that writes each operation down.
#include "kernels/ops/formulas.h"

#include "kernels/ops/table.h"

namespace plumb {
namespace {

// A value as it was computed; `open` where an operator around it needs parentheses.
struct Written {
  std::string text;
  bool open = false;
};

std::string closed(const Written& v) { return v.open ? "(" + v.text + ")" : v.text; }
Written joined(const Written& a, const char* sign, const Written& b) {
  return {closed(a) + sign + closed(b), true};
}
Written operator+(const Written& a, const Written& b) { return joined(a, " + ", b); }
Written operator*(const Written& a, const Written& b) { return joined(a, " * ", b); }
Written operator/(const Written& a, const Written& b) { return joined(a, " / ", b); }
Written operator-(const Written& a, const Written& b) { return joined(a, " - ", b); }
Written operator-(const Written& x) { return {'-' + closed(x), true}; }
Written operator==(const Written& a, const Written& b) { return joined(a, " == ", b); }
Written operator<(const Written& a, const Written& b) { return joined(a, " < ", b); }
Written operator<=(const Written& a, const Written& b) { return joined(a, " <= ", b); }

struct Writer {
  static Written call(const char* name, const Written& x) { return {name + ("(" + x.text + ")")}; }
  Written number() const { return {"number"}; }
  Written shift() const { return {"shift"}; }
  Written infinity() const { return {"inf"}; }
  Written constant(int c) const { return {std::to_string(c)}; }
  template <class F>
  Written written_derivative(const Written& x) const {
    return {"d " + closed(F::of(*this, x)) + " / d " + x.text, true};
  }
  Written over_number(const Written& x) const { return x / number(); }
  Written round(const Written& x) const { return call("R", x); }
  Written select(const Written& chosen, const Written& a, const Written& b) const {
    return {"where(" + chosen.text + ", " + a.text + ", " + b.text + ")"};
  }
  Written reciprocal_root(const Written& x) const { return {"1 / " + call("sqrt", x).text, true}; }
  Written nearest(const Written& x) const { return call("round", x); }
  Written pow(const Written& a, const Written& b) const {
    return {"pow(" + a.text + ", " + b.text + ")"};
  }
  Written multiply_add(const Written& a, const Written& b, const Written& c) const {
    return {"fma(" + a.text + ", " + b.text + ", " + c.text + ")"};
  }
  Written abs(const Written& x) const { return call("abs", x); }
  Written floor(const Written& x) const { return call("floor", x); }
  Written sqrt(const Written& x) const { return call("sqrt", x); }
  Written exp(const Written& x) const { return call("exp", x); }
  Written expm1(const Written& x) const { return call("expm1", x); }
  Written log(const Written& x) const { return call("log", x); }
  Written log1p(const Written& x) const { return call("log1p", x); }
  Written sin(const Written& x) const { return call("sin", x); }
  Written cos(const Written& x) const { return call("cos", x); }
  Written erf(const Written& x) const { return call("erf", x); }
  Written tanh(const Written& x) const { return call("tanh", x); }
  Written silu(const Written& x) const { return call("silu", x); }
  Written gelu(const Written& x) const { return call("gelu", x); }
  Written gelu_tanh(const Written& x) const { return call("gelu_tanh", x); }
};

}  // namespace

std::string text_of(Reduction reduction) {
  return with_reduction(reduction, [&]<class F>() {
    using State = reductions::State<Written, Written>;
    const Writer m;
    const auto text = [](const State& s) {
      return F::kBeside == reductions::Beside::nothing ? s.value.text
                                                       : s.value.text + ", " + s.beside.text;
    };
    const State s{{"s"}, {"t"}}, a{{"a"}, {"ta"}}, b{{"b"}, {"tb"}};
    return text({F::template start<Written>(m), {"0"}}) + "; " +
           text(F::step(m, s, Written{"x"}, Written{"i"})) + "; " + text(F::combine(m, a, b)) +
           "; " + m.round(F::finish(m, s, Written{"count"})).text;
  });
}

std::string text_of(OpId op, Formula formula) {
  const Signature& operands = row_of(op).operands;
  const auto input = [&](int i) {
    const auto place = static_cast<size_t>(operands.outputs + i);
    return Written{std::string(operands.operands.at(place).name)};
  };
  return with_formula(formula, [&]<class F>() {
    const Writer m;
    if constexpr (F::kInputs == 1) return m.round(F::of(m, input(0))).text;
    else if constexpr (F::kInputs == 2) return m.round(F::of(m, input(0), input(1))).text;
    else return m.round(F::of(m, input(0), input(1), input(2))).text;
  });
}

}  // namespace plumb
