#include "harness/judge/localise.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "harness/judge/number_text.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr double kShare = 0.99;                       // of the energy that the region must hold
constexpr size_t kLongestList = 4;                    // indices named one by one
constexpr int64_t kMostRows = 32, kMostColumns = 64;  // of a picture
constexpr size_t kPeriods[] = {8, 16, 32, 64, 128};

std::vector<double> fold(const std::vector<double>& energy, const Partition& by) {
  std::vector<double> out(static_cast<size_t>(by.groups), 0);
  size_t i = 0;
  for (const int64_t row : by.row_part) {
    for (const int64_t column : by.column_part)
      out[static_cast<size_t>(row + column)] += energy[i++];
  }
  return out;
}

std::vector<double> modulo(const std::vector<double>& energy, size_t period) {
  std::vector<double> out(period, 0);
  for (size_t i = 0; i < energy.size(); ++i) out[i % period] += energy[i];
  return out;
}

// The fewest indices that hold `share` of the energy, in ascending order.
std::vector<size_t> fewest(const std::vector<double>& energy, double share) {
  std::vector<size_t> order(energy.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return energy[a] > energy[b]; });
  const double needed = share * std::accumulate(energy.begin(), energy.end(), 0.0);
  double held = 0;
  size_t count = 0;
  while (count < order.size() && (count == 0 || held < needed)) held += energy[order[count++]];
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

// The axis that is looked at. Where only some tokens are here, `labels` are their indices in the
// whole output; nothing periodic can be said of them.
struct Axis {
  std::string role;  // what it is, as far as that is known
  std::string name;  // what words call it
  bool named = true;
  size_t n = 0;
  std::vector<int64_t> labels;

  int64_t label(size_t i) const { return labels.empty() ? static_cast<int64_t>(i) : labels[i]; }
  // "head 3"; of an axis without a name "axis 2: 3 of 8".
  std::string at(const std::string& indices) const {
    return named ? text(name, ' ', indices) : text(name, ": ", indices, " of ", n);
  }
  // "heads"
  std::string all() const { return named ? name + 's' : "indices of " + name; }
};

// Some indices of an axis, in words.
struct Selection {
  std::string words;
  std::vector<uint8_t> chosen;  // per index
};

template <class Indices, class Label>
std::string listed(const Indices& indices, Label label) {
  std::string out;
  for (const size_t i : indices) out += (out.empty() ? "" : ", ") + std::to_string(label(i));
  return out;
}

template <class Choose>
Selection select(std::string words, size_t n, Choose choose) {
  Selection out{std::move(words), std::vector<uint8_t>(n)};
  for (size_t i = 0; i < n; ++i) out.chosen[i] = choose(i);
  return out;
}

std::optional<Selection> as_range(const Axis& axis, const std::vector<size_t>& in) {
  const size_t first = in.front(), last = in.back(), span = last - first + 1, n = axis.n;
  if (span == n || 2 * in.size() < span) return std::nullopt;
  std::string words;
  const bool ordered = axis.named && (axis.role == "token" || axis.role == "kv_token");
  if (ordered && last == n - 1) {
    words = text(axis.name, " >= ", axis.label(first));
  } else if (ordered && first == 0) {
    words = text(axis.name, " < ", axis.label(last) + 1);
  } else {
    words = axis.at(text(axis.label(first), "..", axis.label(last)));
    if (last == n - 1) words += text(" (last ", span, ')');
    if (first == 0) words += text(" (first ", span, ')');
  }
  return select(words, n, [&](size_t i) { return first <= i && i <= last; });
}

std::optional<Selection> as_parity(const Axis& axis, const std::vector<size_t>& in) {
  const size_t n = axis.n;
  const size_t parity = in.front() % 2;
  const bool same = std::all_of(in.begin(), in.end(), [&](size_t i) { return i % 2 == parity; });
  if (!same || in.size() < 3 || 4 * in.size() < n) return std::nullopt;
  return select(text(parity ? "odd " : "even ", axis.all()), n,
                [&](size_t i) { return i % 2 == parity; });
}

// Index k of the first half with index k of the second: one rotary pair.
std::optional<Selection> as_pair(const Axis& axis, const std::vector<size_t>& in) {
  const size_t n = axis.n;
  if (!axis.named || axis.role != "head_dim" || n % 2 == 1 || in.size() != 2 ||
      in[1] - in[0] != n / 2)
    return std::nullopt;
  return select(text("rotary pair ", in[0], " (", axis.name, ' ', in[0], " and ", in[1], ')'), n,
                [&](size_t i) { return i == in[0] || i == in[1]; });
}

std::optional<Selection> as_period(const Axis& axis, const std::vector<double>& energy,
                                   const std::vector<size_t>& in, double share) {
  const size_t n = energy.size();
  for (const size_t period : kPeriods) {
    if (n < 2 * period) break;
    const std::vector<size_t> residues = fewest(modulo(energy, period), share);
    if (4 * residues.size() > period || in.size() < 2 * residues.size()) continue;
    if (2 * in.size() <= residues.size() * (n / period)) continue;  // most of them are right
    const bool one = residues.size() == 1;
    return select(text(axis.name, " mod ", period, one ? " = " : " in ",
                       listed(residues, [](size_t i) { return i; })),
                  n, [&](size_t i) {
                    return std::binary_search(residues.begin(), residues.end(), i % period);
                  });
  }
  return std::nullopt;
}

// The smallest describable set of indices that holds `share` of the energy; nothing when it is the
// axis.
std::optional<Selection> narrow(const Axis& axis, const std::vector<double>& energy, double share) {
  const size_t n = axis.n;
  const bool whole = axis.labels.empty();
  const auto label = [&](size_t i) { return axis.label(i); };
  if (n < 2) return std::nullopt;
  const std::vector<size_t> in = fewest(energy, share);
  const auto chosen = [&](size_t i) { return std::binary_search(in.begin(), in.end(), i); };
  if (in.size() == n) return std::nullopt;
  if (in.size() == 1) return select(axis.at(std::to_string(label(in[0]))), n, chosen);
  if (auto pair = as_pair(axis, in)) return pair;
  if (auto parity = as_parity(axis, in); parity && whole) return parity;
  if (auto range = as_range(axis, in)) return range;
  if (auto period = as_period(axis, energy, in, share); period && whole) return period;
  if (2 * in.size() > n) return std::nullopt;
  if (in.size() <= kLongestList) return select(axis.at(listed(in, label)), n, chosen);
  return select(text(in.size(), " of ", n, ' ', axis.all()), n, chosen);
}

std::vector<ErrorMap> error_maps(const std::vector<double>& energy, const Layout& layout) {
  std::vector<ErrorMap> out;
  for (size_t axis = 0; axis < layout.axes.size(); ++axis) {
    const std::string name = layout.axis_name(static_cast<int>(axis));
    if (layout.shape[static_cast<int>(axis)] < 2) continue;
    const auto along = fold(energy, along_axis(layout, static_cast<int>(axis)));
    out.push_back({name, along});
    const bool pairs = layout.axes[axis] == "head_dim" && layout.is_named(static_cast<int>(axis));
    if (pairs && along.size() % 2 == 0) {
      out.push_back({name + " pair", modulo(along, along.size() / 2)});
    }
    if (static_cast<int>(axis) != layout.token_axis || !layout.chosen.empty()) continue;
    for (const size_t period : kPeriods) {
      if (along.size() >= 2 * period)
        out.push_back({text(name, " mod ", period), modulo(along, period)});
    }
  }
  for (const Partition& family : error_families(layout)) {
    if (family.name == "tile") out.push_back({"tile", fold(energy, family)});
  }
  return out;
}

std::string joined_axes(const Layout& layout, bool of_rows) {
  std::string out;
  for (size_t axis = 0; axis < layout.axes.size(); ++axis) {
    const bool column = std::find(layout.column_axes.begin(), layout.column_axes.end(),
                                  static_cast<int>(axis)) != layout.column_axes.end();
    if (column == of_rows || layout.shape[static_cast<int>(axis)] < 2) continue;
    out += (out.empty() ? "" : " x ") + layout.axis_name(static_cast<int>(axis));
  }
  return out;
}

// Mean energies, halving by halving of their root.
std::string as_digits(const double* means, int64_t n, double largest) {
  std::string out(static_cast<size_t>(n), '0');
  for (int64_t i = 0; i < n; ++i) {
    if (!(means[i] > 0)) continue;
    const double halvings = std::floor(std::log2(largest / means[i]) / 2 + 0.5);
    if (halvings < 15) out[static_cast<size_t>(i)] = "fedcba987654321"[static_cast<int>(halvings)];
  }
  return out;
}

double share_of(const Layout& layout) {
  return 1 - (1 - kShare) / static_cast<double>(std::max<size_t>(layout.axes.size(), 1));
}

// What of an axis holds the energy summed along it; nothing when it is the axis.
std::optional<Selection> narrowed(const Layout& layout, size_t axis,
                                  const std::vector<double>& along) {
  const int at = static_cast<int>(axis);
  const Axis named{layout.axes[axis], layout.axis_name(at), layout.is_named(at), along.size(),
                   at == layout.token_axis ? layout.chosen : std::vector<int64_t>()};
  return narrow(named, along, share_of(layout));
}

ErrorPicture picture_of(const std::vector<double>& energy, const Layout& layout) {
  ErrorPicture out{
      joined_axes(layout, true), joined_axes(layout, false), layout.rows, layout.columns, {}};
  const int64_t high = std::min(layout.rows, kMostRows);
  const int64_t wide = std::min(layout.columns, kMostColumns);
  std::vector<double> means(static_cast<size_t>(high * wide), 0), sizes = means;
  for (int64_t row = 0, at = 0; row < layout.rows; ++row) {
    for (int64_t column = 0; column < layout.columns; ++column, ++at) {
      const int64_t cell = row * high / layout.rows * wide + column * wide / layout.columns;
      means[static_cast<size_t>(cell)] += energy[static_cast<size_t>(at)];
      ++sizes[static_cast<size_t>(cell)];
    }
  }
  for (size_t i = 0; i < means.size(); ++i) means[i] /= sizes[i];
  const double largest = *std::max_element(means.begin(), means.end());
  for (int64_t row = 0; row < high; ++row)
    out.cells.push_back(as_digits(&means[static_cast<size_t>(row * wide)], wide, largest));
  return out;
}

}  // namespace

std::string worst_of(const std::vector<Gate>& gates) {
  const Gate* worst = nullptr;
  const auto ratio = [](const Gate& gate) {
    const double r = gate.statistic / gate.limit;
    return std::isnan(r) ? std::numeric_limits<double>::infinity() : r;
  };
  for (const Gate& gate : gates) {
    if (gate.passed || gate.where.empty()) continue;
    if (worst == nullptr || ratio(gate) > ratio(*worst)) worst = &gate;
  }
  if (worst == nullptr) return {};
  if (!(worst->limit > 0) || !std::isfinite(ratio(*worst))) return worst->where;
  return text(worst->where, " (", two_digits(ratio(*worst)), "x the limit)");
}

std::vector<double> excess_energy(const std::vector<double>& y, const ReferenceScales& scales,
                                  double relative_noise) {
  std::vector<double> raw(y.size(), 0), excess(y.size(), 0);
  double largest = 0, total = 0;
  int64_t i = 0;
  for (int64_t row = 0; row < scales.layout.rows; ++row) {
    for (int64_t column = 0; column < scales.layout.columns; ++column, ++i) {
      const auto at = static_cast<size_t>(i);
      if (!scales.usable[at]) continue;
      const double d = y[at] - scales.o[at];
      const double noise = 2 * relative_noise * scales.element_scale(row, i);
      raw[at] = d * d;
      if (!std::isfinite(raw[at])) continue;
      largest = std::max(largest, raw[at]);
      excess[at] = std::max(0.0, d * d - noise * noise);
      total += excess[at];
    }
  }
  for (size_t at = 0; at < raw.size(); ++at) {
    if (std::isfinite(raw[at])) continue;
    raw[at] = excess[at] = largest > 0 ? largest : 1;
    total += excess[at];
  }
  return total > 0 ? excess : raw;
}

Localisation localise(const std::vector<double>& energy, const Layout& layout,
                      const std::vector<Gate>& gates) {
  Localisation out;
  out.worst = worst_of(gates);
  out.maps = error_maps(energy, layout);
  const double total = std::accumulate(energy.begin(), energy.end(), 0.0);
  if (!(total > 0)) {
    out.region = "nowhere";
    return out;
  }
  out.picture = picture_of(energy, layout);
  std::vector<double> inside = energy;
  for (size_t axis = 0; axis < layout.axes.size(); ++axis) {
    const Partition along = along_axis(layout, static_cast<int>(axis));
    const auto selection = narrowed(layout, axis, fold(energy, along));
    if (!selection) continue;
    out.region += (out.region.empty() ? "" : ", ") + selection->words;
    size_t i = 0;
    for (const int64_t row : along.row_part) {
      for (const int64_t column : along.column_part) {
        if (!selection->chosen[static_cast<size_t>(row + column)]) inside[i] = 0;
        ++i;
      }
    }
  }
  out.share = std::accumulate(inside.begin(), inside.end(), 0.0) / total;
  if (out.region.empty()) out.region = "everywhere";
  return out;
}

std::string region_of(const std::vector<std::vector<double>>& along, const Layout& layout) {
  std::string out;
  for (size_t axis = 0; axis < along.size(); ++axis) {
    const auto selection = narrowed(layout, axis, along[axis]);
    if (selection) out += (out.empty() ? "" : ", ") + selection->words;
  }
  return out.empty() ? "everywhere" : out;
}

}  // namespace plumb::harness
