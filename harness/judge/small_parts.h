// What the number of bits that differ cannot see of a 16-bit output: how far
// one element is off, and whether those that are off are in one channel.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace plumb::harness {

struct SmallParts {
  double distance = 0;  // the largest |y - m|, less the noise of float32, in 2 u
                        // max(|m|, normal)
  int64_t distance_at = -1;
  int64_t crowd = 0;      // the most elements of one channel that differ; equal
                          // pairs of y, m count once
  int64_t crowd_at = -1;  // the first of them
  double distance_limit = std::numeric_limits<double>::infinity();
  double crowd_limit = std::numeric_limits<double>::infinity();

  bool fit() const { return distance <= distance_limit && crowd <= crowd_limit; }
};

// Positions that differ, ascending, of a [rows, columns] output.
struct Differing {
  const std::vector<double> &y;
  const std::vector<double> &model;
  std::vector<int64_t> positions;
  int64_t columns = 1;
};

// `unit` is u of the storage, `normal` its smallest normal number, `noise` what
// float32 is off by.
void measure_small_parts(SmallParts &out, const Differing &differing, double unit, double normal,
                         double noise);

// The same of what roundings at other points move, without limits: the largest
// distance.
double furthest(const std::vector<double> &y, const std::vector<double> &model,
                const std::vector<uint8_t> &valid, double unit, double normal, double noise);

// The elements of a channel of so many that may differ where each does with
// chance q: fewer outputs than one in 10^9 have a channel with more. Infinite where all may.
double crowd_limit(int64_t rows, int64_t channels, double q);

}  // namespace plumb::harness
