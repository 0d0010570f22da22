// Where an error is: the smallest axis-aligned region that holds almost all of it, in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/judge/limits.h"
#include "harness/judge/statistics.h"

namespace plumb::harness {

// Energy summed over everything but one coordinate.
struct ErrorMap {
  std::string name;            // an axis, "tile", "head_dim pair", "token mod 16"
  std::vector<double> energy;  // per index
};

// The energy over rows and columns at once, coarse enough to be kept with every failure.
struct ErrorPicture {
  std::string row_axes, column_axes;  // "batch x token", "head x head_dim"
  int64_t rows = 0, columns = 0;      // of the output
  // A line of hexadecimal digits for every band of rows, a digit for every band of columns: f where
  // an element is wrong the most (root mean square of a cell), half of that is e, and so on; 0 is
  // less than 2^-14 of it.
  std::vector<std::string> cells;
};

struct Localisation {
  std::string region;  // "head 3, token >= 5"; "everywhere"
  double share = 0;    // of the energy that is inside the region
  std::string worst;   // "token 5, head 3 (4.2x the limit)": the worst failed gate that has a place
  std::vector<ErrorMap> maps;
  ErrorPicture picture = {};
};

// d_i^2 less four times what the reference's error allows there; where nothing is left, d_i^2.
// Elements that are not usable are 0, those that are not finite count as the largest finite energy.
std::vector<double> excess_energy(const std::vector<double>& y, const ReferenceScales& scales,
                                  double relative_noise);

// energy: [rows, columns], not negative.
Localisation localise(const std::vector<double>& energy, const Layout& layout,
                      const std::vector<Gate>& gates);

// "token 5, head 3 (4.2x the limit)": the worst failed gate that has a place; "" for none.
std::string worst_of(const std::vector<Gate>& gates);

// The region alone, of an energy whose sums along each of the layout's axes are known.
std::string region_of(const std::vector<std::vector<double>>& along, const Layout& layout);

}  // namespace plumb::harness
