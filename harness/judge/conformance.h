// Conformance: 16-bit outputs judged by their bits, against the contract's rounded model m (the
// float64 block, rounded to storage at exactly the contract's rounding points).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/judge/limits.h"
#include "harness/judge/output_case.h"
#include "harness/judge/small_parts.h"
#include "kernels/core/dtype.h"

namespace plumb::harness {

struct Conformance {
  int64_t n = 0;          // elements compared
  int64_t differ = 0;     // y != m; -0 equals +0, NaN equals NaN
  int64_t set_aside = 0;  // of these, in rows that one rounding upstream may have turned over
  int64_t first = -1;     // position of the first that differs
  double q = 0;      // share that a correct kernel may have: 0.003 + 3 F_acc / u_store (+ cascades)
  double limit = 0;  // max(8, n q + 3 sqrt(n q)) + w
  bool passed = false;  // !!(differ - set_aside <= limit)
};

// How many bits a correct kernel may have otherwise.
struct ConformanceRule {
  double accumulation = 0;  // F_acc
  double u_store = 0;
  // F_1 of the stages whose flips feed a later sum (0: none), which adds 2 sqrt(3 F_1 / u_store) to
  // q: of its n terms n p are an ulp off, which moves it by sqrt(p) of its own ulp.
  double cascade = 0;
  int64_t fed = 0;      // w: outputs that one upstream rounding feeds
  int64_t columns = 1;  // of a row of y
  bool leaf = false;    // no rounded value feeds a sum
  double others = 0;    // how far roundings at other points move an element
  DType storage = DType::bf16;
  Bottleneck bottleneck{};
};

ConformanceRule conformance_rule(const Rule& rule, const Floors& floors, int64_t columns);

// Flips behind a bottleneck are no independent flips of outputs. One in r values of a row moves all
// of the row's outputs together, each by 1 / sqrt(r) of its ulp: up to 2 / sqrt(r) of them change,
// and most rows have none. The law of the square root holds from one flip per row on; below it the
// worst rows are set aside, as many as a Poisson count of flips exceeds once in 10^4, and the other
// rows are held to the bits of their last sum alone.
struct RowsAside {
  int64_t rows = 0;
  int64_t outputs = 0;  // of each, at most
};
RowsAside rows_aside(const ConformanceRule& rule, int64_t rows);

// w of a norm, which scales a row as a whole. Where the scale's last bit brings one value of x to
// the other side of a tie, it brings all of that significand in the row there, of which bf16 has
// 128: the most in a row of x [.., columns], zeros apart, less the one that the share of flips
// counts. 0 where x is not stored in 16 bits: its values differ.
int64_t alike_in_row(const Tensor& x);

// Applies to f16 and bf16 storage where at least 64 elements are not set aside.
bool conformance_applies(DType storage, int64_t n, const RowsAside& aside = {});

// What float32 arithmetic on values of ordinary size may be off by. An element that is tiny because
// its terms cancel (GeLU's tail in the textbook form) has a last bit that no contract determines.
double noise(const std::vector<double>& model, const std::vector<uint8_t>& valid);

// `parts`, where that is not null, are measured where so few differ that they say something.
Conformance conformance(const std::vector<double>& y, const std::vector<double>& model,
                        const std::vector<uint8_t>& valid, const ConformanceRule& rule,
                        SmallParts* parts = nullptr);

// q, limit and passed of what was counted.
void hold(Conformance& found, const ConformanceRule& rule);
// The limits of what was measured of its parts.
void limit_parts(SmallParts& parts, const Conformance& found, const ConformanceRule& rule);
// How many times the noise of float32 is taken from distances.
double noise_of_sums(const ConformanceRule& rule);

// The share of elements that differ, as "3.1 %".
std::string share_that_differs(const Conformance& found);

}  // namespace plumb::harness
