// Limits and verdict of an output of which only figures are known. The sums are made where the
// tensors are, on any device; what follows from the sums is computed here alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/judge/bit_ways.h"
#include "harness/judge/conformance_gates.h"
#include "harness/judge/limit_basis.h"
#include "harness/judge/verdict.h"

namespace plumb::harness {

// What is measured of one output.
struct MeasuredOutput {
  int64_t wrong = 0;  // elements of a class that is not allowed (classes.h)
  Figures figures;
  std::vector<MeasuredBits> bits;  // compared with each way to round; limits are not set
};

// An output and its oracle without their elements.
struct KnownOutput {
  Rule rule;                 // contract, leaf
  Allowance allowance;       // spread
  ReferenceScales scales;    // without o
  int64_t valid = 0;         // elements
  std::vector<BitWay> ways;  // of 16 bits: the rounded model's first; nothing is measured
};

// What is made of it.
struct JudgedOutput {
  OutputVerdict verdict;  // gates, rounding, conformance, statistics of y and of the reference
  std::string bits;       // which roundings y's bits follow, in words
};

class OutputLimits {
 public:
  explicit OutputLimits(KnownOutput known);

  const KnownOutput& known() const { return known_; }
  // Whether there are enough elements for bits to say something.
  bool has_bits() const;

  // Values of one significand in a row of inputs (alike_in_row), which count where no rounded value
  // is summed; what is measured of the reference and of each way's model; of each way how far its
  // roundings move an element of the first.
  void set(int64_t alike, std::vector<GainScales::Family> gains, MeasuredOutput reference,
           std::vector<MeasuredOutput> models, const std::vector<double>& moves);

  // The gates on y, in their order: with a wrong class that alone.
  std::vector<Gate> gates(const MeasuredOutput& y) const;
  JudgedOutput judged(const MeasuredOutput& y) const;
  // What words call the axes (Layout::labels).
  void call_axes(std::vector<std::string> labels);
  // The largest error of an element that any of the ways may have.
  double element_limit() const;

 private:
  KnownFigures figures_beside(size_t way, const std::vector<size_t>& peers) const;

  KnownOutput known_;
  std::vector<GainScales> gains_;  // one
  MeasuredOutput reference_;
  std::vector<MeasuredOutput> models_;
};

// Whether a whole error, E_T, is at most 1.5 times the reference's, or below the floor. Not those
// of the worst groups: of two ways to round they are draws.
bool tensor_no_less_accurate(double error, double of_reference, DType storage);

// The largest ratio of gates: Inf where a statistic is no number.
double margin(const std::vector<Gate>& gates);

}  // namespace plumb::harness
