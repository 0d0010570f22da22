#include "harness/judge/verdict_text.h"

#include <cmath>
#include <limits>

#include "harness/judge/number_text.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// Counting gates have limit 0 and come before the others, so the first infinite ratio wins.
const Gate& worst_gate(const OutputVerdict& v) {
  const Gate* worst = &v.gates.front();
  for (const Gate& gate : v.gates) {
    if (gate.passed) continue;
    if (worst->passed || ratio(gate) > ratio(*worst)) worst = &gate;
  }
  return *worst;
}

double term(const Gate& gate, std::string_view name) {
  for (const Term& t : gate.derivation) {
    if (t.name == name) return t.value;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

// What a gate is called where a row may be something else than a token.
std::string without_axes(const std::string& gate) {
  if (gate == "token") return "row";
  if (gate == "channel") return "column";
  if (gate == "channel gain") return "column gain";
  if (gate == "head gain") return "part gain";
  return gate == "token x head" ? "part of a row" : gate;
}

std::string at(const Gate& gate) { return gate.where.empty() ? "" : " at " + gate.where; }

std::string class_text(const OutputVerdict& v, const Gate& gate, const WrongClass& first) {
  std::string out =
      text(v.classes.wrong, " elements of the wrong class, the first", at(gate), ": ",
           two_digits(first.y), ", expected ",
           std::isfinite(first.expected) ? "a finite value" : two_digits(first.expected));
  if (v.classes.unknown_oracle > 0) {
    out += text("; at ", v.classes.unknown_oracle,
                " of them the reference overflowed and the recording "
                "does not hold the oracle's value: judge them with a computed oracle");
  }
  return out;
}

std::string gate_text(const OutputVerdict& v, const Gate& gate, const WrongClass& first,
                      bool nameless) {
  if (gate.name == "classes") return class_text(v, gate, first);
  if (gate.name == "padding") {
    return text(v.classes.padded_wrong, " padded elements are not finite, the first", at(gate));
  }
  if (gate.name == "bits") {
    return text(gate.statistic, " of ", term(gate, "n"),
                " elements differ from the expected result, the first", at(gate));
  }
  if (gate.name == "conformance") {
    const double rows = term(gate, "rows_aside");
    return text(gate.statistic, " of ", term(gate, "n"),
                " elements differ from the contract's rounded "
                "model, allowed ",
                std::floor(gate.limit), rows > 0 ? text(" outside the worst ", rows, " rows") : "");
  }
  if (gate.name == "ulp") {
    return text("an element is ", two_digits(gate.statistic),
                " units in the last place off the contract's rounded model, allowed ",
                two_digits(gate.limit), at(gate));
  }
  if (gate.name == "channel bits") {
    return text(gate.statistic,
                " elements of one channel differ from the contract's rounded model, "
                "allowed ",
                std::floor(gate.limit), at(gate));
  }
  if (gate.name == "rows finite") {
    return text(gate.statistic, " elements are not finite, the first", at(gate));
  }
  if (gate.name == "rows set aside") {
    return text("a row that is set aside is ", two_digits(gate.statistic),
                " times as far off as correct runs are there, allowed ", two_digits(gate.limit));
  }
  if (gate.name == "sketch" && std::isnan(term(gate, "reference"))) {
    return text("sketch of a row differs ", two_digits(gate.statistic), " times what is allowed",
                at(gate));
  }
  if (gate.name == "float64 block") {
    return text("the float64 block is ", two_digits(gate.statistic),
                " times what is allowed off the recorded oracle", at(gate),
                ": its params, or the recording, are not this block's, and nothing else counts");
  }
  if (gate.name == "float64 agreement") {
    return text("float64 error ", two_digits(gate.statistic), " times what is allowed", at(gate));
  }
  const std::string name = nameless ? without_axes(gate.name) : gate.name;
  const bool gain = name.ends_with("gain");
  const std::string what = gain ? name : name + " error";
  return text(what, ' ', two_digits(gate.statistic), ", allowed ", two_digits(gate.limit),
              " (reference ", two_digits(term(gate, "reference")), ')');
}

}  // namespace

std::string failure_text(const OutputVerdict& verdict, const WrongClass& first, bool nameless) {
  std::string out = gate_text(verdict, worst_gate(verdict), first, nameless);
  if (!verdict.where) return out;
  if (!verdict.where->worst.empty()) out += "; worst " + verdict.where->worst;
  return out + "; where: " + verdict.where->region;
}

}  // namespace plumb::harness
