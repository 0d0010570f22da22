// Writes formulas.h, which map.k and reduce.k include: the formulas and reductions of kernels/ops
// in the language of the kernels. They are evaluated with an arithmetic that writes each operation
// down: a line each, and one for what has been written already.
//
//   portable_formulas FILE
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "kernels/ops/formulas.h"
#include "kernels/ops/reductions.h"
#include "kernels/ops/wholes.h"

namespace plumb::portable {
namespace {

// The lines of one function, which define t0, t1, ...
class Lines {
 public:
  std::string name_of(const char* type, const std::string& expression) {
    const auto [known, is_new] =
        names_.try_emplace(expression, "t" + std::to_string(names_.size()));
    if (is_new)
      text_ += std::string("      ") + type + ' ' + known->second + " = " + expression + ";\n";
    return known->second;
  }
  const std::string& text() const { return text_; }

 private:
  std::map<std::string, std::string> names_;
  std::string text_;
};
Lines* lines = nullptr;  // of the function that is written
bool of_wholes = false;  // it computes in 64 bits that wrap (kernels/ops/wholes.h), not in float32

struct Truth {
  std::string name;
};
struct Coded {
  std::string name;
};
struct CodedIndex {
  std::string name;
};

const char* number_type() { return of_wholes ? "i64" : "float"; }
Coded coded(const std::string& expression) { return {lines->name_of(number_type(), expression)}; }
Truth truth(const std::string& expression) { return {lines->name_of("bool", expression)}; }
Coded call(const char* function, const Coded& x) {
  return coded(std::string(function) + '(' + x.name + ')');
}
Coded call(const char* function, const Coded& a, const Coded& b) {
  return coded(std::string(function) + '(' + a.name + ", " + b.name + ')');
}

// Of whole numbers unsigned, whose overflow is defined.
Coded combined(const Coded& a, const char* sign, const Coded& b) {
  return coded(of_wholes ? "I64(U64(" + a.name + ")" + sign + "U64(" + b.name + "))"
                         : a.name + sign + b.name);
}
Coded operator+(const Coded& a, const Coded& b) { return combined(a, " + ", b); }
Coded operator-(const Coded& a, const Coded& b) { return combined(a, " - ", b); }
Coded operator*(const Coded& a, const Coded& b) { return combined(a, " * ", b); }
Coded operator/(const Coded& a, const Coded& b) { return call("quotient", a, b); }
constexpr const char *kLargest = "LARGEST", *kLeast = "LEAST";  // of whole numbers
Coded operator-(const Coded& x) {
  if (x.name == kLargest) return {kLeast};
  return of_wholes ? Coded{"I64(0)"} - x : coded('-' + x.name);
}
Truth operator==(const Coded& a, const Coded& b) {
  if (of_wholes && a.name == b.name) return {"true"};  // it asks for NaN
  return truth(a.name + " == " + b.name);
}
Truth operator<(const Coded& a, const Coded& b) { return truth(a.name + " < " + b.name); }
Truth operator<=(const Coded& a, const Coded& b) { return truth(a.name + " <= " + b.name); }
Truth operator<(const CodedIndex& a, const CodedIndex& b) { return truth(a.name + " < " + b.name); }

// The arithmetic of kernels/ops/formulas.h.
struct Coder {
  Coded number() const { return {"number"}; }
  Coded shift() const { return {"shift"}; }
  Coded infinity() const { return {of_wholes ? kLargest : "INF"}; }
  Coded real(double x) const {
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.9ef", x);
    return {digits};
  }
  Coded constant(int c) const {
    if (of_wholes) return {"I64(" + std::to_string(c) + ')'};
    return {c < 0 ? "(" + std::to_string(c) + ".0f)" : std::to_string(c) + ".0f"};
  }
  Coded over_number(const Coded& x) const { return x / number(); }
  Coded round(const Coded& x) const { return call("ROUNDED", x); }
  Coded select(const Truth& chosen, const Coded& a, const Coded& b) const {
    return coded(chosen.name + " ? " + a.name + " : " + b.name);
  }
  CodedIndex select(const Truth& chosen, const CodedIndex& a, const CodedIndex& b) const {
    return {lines->name_of("i32", chosen.name + " ? " + a.name + " : " + b.name)};
  }
  Coded reciprocal_root(const Coded& x) const { return call("reciprocal_sqrt", x); }
  Coded abs(const Coded& x) const {
    return of_wholes ? select(x < constant(0), -x, x) : call("ABS", x);
  }
  Coded floor(const Coded& x) const { return call("FLOOR", x); }
  Coded nearest(const Coded& x) const { return call("NEAREST", x); }
  Coded sqrt(const Coded& x) const { return call("square_root", x); }
  Coded exp(const Coded& x) const { return call("exponential", x); }
  Coded expm1(const Coded& x) const { return call("exponential_minus_1", x); }
  Coded log(const Coded& x) const { return call("logarithm", x); }
  Coded log1p(const Coded& x) const { return call("logarithm_of_1_plus", x); }
  Coded sin(const Coded& x) const { return coded("sine(" + x.name + ", 0)"); }
  Coded cos(const Coded& x) const { return coded("sine(" + x.name + ", 1)"); }
  Coded erf(const Coded& x) const { return call("error_function", x); }
  Coded tanh(const Coded& x) const { return call("hyperbolic_tangent", x); }
  Coded silu(const Coded& x) const { return call("silu", x); }
  Coded gelu(const Coded& x) const { return call("gelu", x); }
  Coded gelu_tanh(const Coded& x) const { return call("gelu_tanh", x); }
  Coded pow(const Coded& a, const Coded& b) const { return call("power", a, b); }
  Coded multiply_add(const Coded& a, const Coded& b, const Coded& c) const {
    return coded("multiply_add(" + a.name + ", " + b.name + ", " + c.name + ')');
  }
};

// "    case 3: { // name" with the lines that `write` makes, and the last one that it returns.
template <class Write>
std::string one_case(int number, const char* name, Write write) {
  Lines of_case;
  lines = &of_case;
  const std::string last = write();
  return "    case " + std::to_string(number) + ": {  // " + name + '\n' + of_case.text() +
         "      " + last + "\n    }\n";
}

template <class F>
std::string formula_case(int number, const char* name) {
  return one_case(number, name, [] {
    const Coder m;
    const Coded a{"a"}, b{"b"}, c{"c"};
    Coded y;
    if constexpr (F::kInputs == 1) y = F::of(m, a);
    else if constexpr (F::kInputs == 2) y = F::of(m, a, b);
    else y = F::of(m, a, b, c);
    return "return " + y.name + ';';
  });
}

// The second member of a reduction's state: a value, or an index.
template <class F>
using Beside = std::conditional_t<F::kBeside == reductions::Beside::index, CodedIndex, Coded>;
template <class F>
using StateOf = reductions::State<Coded, Beside<F>>;

template <class F>
StateOf<F> state(const std::string& name) {
  constexpr bool kIndex = F::kBeside == reductions::Beside::index;
  return {{name + ".value"}, {kIndex ? name + ".at" : of_wholes ? "0.0f" : name + ".more"}};
}
template <class F>
std::string state_text(const StateOf<F>& s) {
  const std::string& beside = s.beside.name;
  constexpr bool kIndex = F::kBeside == reductions::Beside::index;
  return "return state_of(" + s.value.name + ", " + (kIndex ? "0.0f" : beside) + ", " +
         (kIndex ? beside : "0") + ");";
}

template <class Case>
std::string function(const char* head, const char* otherwise, Case write_case) {
  return std::string("FUNCTION ") + head + " {\n  switch (which) {\n" + write_case() +
         "  }\n  return " + otherwise + ";\n}\n";
}

std::string formulas() {
  std::string cases;
#define PLUMB_WRITE(name)                                                          \
  if (!of_wholes || takes_wholes(Formula::name)) {                                 \
    cases += formula_case<formulas::name>(static_cast<int>(Formula::name), #name); \
  }
  PLUMB_FOR_EACH_FORMULA(PLUMB_WRITE)
#undef PLUMB_WRITE
  return cases;
}

template <class Write>
std::string reduction_cases(Write write) {
  std::string cases;
#define PLUMB_WRITE(name)                                                             \
  if (!of_wholes || takes_wholes(Reduction::name)) {                                  \
    cases += one_case(static_cast<int>(Reduction::name), #name,                       \
                      [&] { return write.template operator()<reductions::name>(); }); \
  }
  PLUMB_FOR_EACH_REDUCTION(PLUMB_WRITE)
#undef PLUMB_WRITE
  return cases;
}

// Of the type of numbers, T.
std::string reductions_code() {
  const Coder m;
  const std::string none = of_wholes ? "I64(0)" : "0.0f", type = number_type();
  std::string out = function(
      "State reduction_start(i32 which)", ("state_of(" + none + ", 0.0f, 0)").c_str(), [&] {
        return reduction_cases([&]<class F>() {
          return "return state_of(" + F::template start<Coded>(m).name + ", 0.0f, 0);";
        });
      });
  out += function(("State reduction_step(i32 which, State s, " + type + " x, i32 at)").c_str(), "s",
                  [&] {
                    return reduction_cases([&]<class F>() {
                      return state_text<F>(F::step(m, state<F>("s"), Coded{"x"}, CodedIndex{"at"}));
                    });
                  });
  out += function("State reduction_combined(i32 which, State a, State b)", "a", [&] {
    return reduction_cases(
        [&]<class F>() { return state_text<F>(F::combine(m, state<F>("a"), state<F>("b"))); });
  });
  return out + function((type + " reduction_value(i32 which, State s, " + type + " count)").c_str(),
                        "s.value", [&] {
                          return reduction_cases([&]<class F>() -> std::string {
                            if constexpr (F::kBeside == reductions::Beside::index)
                              return "return s.value;";
                            else
                              return "return " + F::finish(m, state<F>("s"), Coded{"count"}).name +
                                     ';';
                          });
                        });
}

std::string guarded(const char* macro, const std::string& code) {
  return std::string("#if defined(") + macro + ")\n" + code + "#endif\n";
}

std::string all() {
  std::string out = "// Written by portable_formulas (formula_code.cpp).\n";
  out += guarded("WITH_FORMULAS", function("float formula(i32 which, float a, float b, float c, "
                                           "float number, float shift)",
                                           "a", formulas));
  out += guarded("WITH_REDUCTIONS", reductions_code());
  of_wholes = true;
  out += guarded("WITH_WHOLE_FORMULAS",
                 function("i64 whole_formula(i32 which, i64 a, i64 b, i64 c)", "a", formulas));
  return out + guarded("WITH_WHOLE_REDUCTIONS", reductions_code());
}

}  // namespace
}  // namespace plumb::portable

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: portable_formulas FILE\n";
    return 2;
  }
  std::ofstream out(argv[1]);
  out << plumb::portable::all();
  return out.flush() ? 0 : 1;
}
