#include "harness/report/compare_report.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "harness/io/escape.h"
#include "harness/io/table.h"
#include "harness/report/console.h"
#include "harness/run/outcome.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::string joined(const std::vector<size_t>& which, const std::vector<std::string>& names) {
  std::string out;
  for (const size_t i : which) out += (out.empty() ? "" : ",") + names[i];
  return out;
}

// One block in one dtype.
struct Row {
  std::map<Finding, int64_t> findings;
  std::vector<int64_t> alone;  // per device
  int64_t checkpoints = 0, elements = 0, equal_bits = 0;
  double worst = -1;
  std::string gate, pair;

  void add(const Comparison& c, const std::vector<std::string>& devices) {
    alone.resize(devices.size());
    ++checkpoints;
    ++findings[c.finding];
    if (c.finding == Finding::alone) {
      for (const size_t i : c.look_at) ++alone[i];
    }
    for (const Pair& p : c.pairs) {
      if (p.same_contract) {
        elements += p.elements;
        equal_bits += p.equal_bits;
      }
      if (ratio(p.worst) <= worst) continue;
      worst = ratio(p.worst);
      gate = p.worst.name;
      pair = joined({p.a, p.b}, devices);
    }
  }
};

// "99.98 %", rounded down, so that it is 100 only where no bit differs.
std::string share_text(int64_t part, int64_t all) {
  if (all == 0) return "-";
  const auto hundredths =
      static_cast<int64_t>(10000.0 * static_cast<double>(part) / static_cast<double>(all));
  const std::string decimals = std::to_string(100 + hundredths % 100).substr(1);
  return text(hundredths / 100, '.', decimals, " %");
}

// Of the block's run; the oracle has a dtype of its own.
const std::string& dtype_of(const Comparison& c) {
  const auto found = std::find_if(c.results.begin(), c.results.end(),
                                  [](const CheckpointResult& r) { return r.device != "oracle"; });
  return found == c.results.end() ? c.results.front().dtype : found->dtype;
}

// A finding of one block in one dtype, and the checkpoint that shows it most.
struct Group {
  const Comparison* worst = nullptr;
  double ratio_of_worst = -1;
  int64_t checkpoints = 0;

  void add(const Comparison& c) {
    ++checkpoints;
    double farthest = -0.5;
    for (const Pair& p : c.pairs) farthest = std::max(farthest, ratio(p.worst));
    if (farthest <= ratio_of_worst) return;
    ratio_of_worst = farthest;
    worst = &c;
  }
};

std::string contracts(const Comparison& c) {
  std::string out;
  for (const CheckpointResult& r : c.results) {
    out += text("        ", terminal_text(r.device), ": ", name_of(r.status), ", ",
                r.contract.empty() ? terminal_text(r.reason) : r.contract, '\n');
  }
  return out;
}

// One device's command for all of them.
std::string repeat_command(const CheckpointResult& one, const std::string& devices) {
  const std::string harness = "harness", device = " --device ";
  std::string out = one.again;
  const size_t program = out.find(harness + ' ');  // behind variables of the environment
  if (program != std::string::npos) out.insert(program + harness.size(), " compare-devices");
  const size_t at = out.find(device + one.device);
  if (at != std::string::npos) out.replace(at + device.size(), one.device.size(), devices);
  return out;
}

std::string group_text(const Group& group, const std::string& block, const std::string& dtype,
                       int64_t of, const std::vector<std::string>& devices) {
  const Comparison& c = *group.worst;
  const CheckpointResult& example = c.results.front();
  std::string out = text('\n', name_of(c.finding), "  ", terminal_text(block), ' ', dtype, ", ",
                         group.checkpoints, " of ", of, " checkpoints: ", terminal_text(c.words),
                         "\n      such as ", terminal_text(example.recording), "  ",
                         terminal_text(example.checkpoint), '\n', contracts(c));
  for (const Pair& p : c.pairs) {
    out += text("        ", terminal_text(joined({p.a, p.b}, devices)), ": ",
                p.agree ? "agree" : "differ", ", ", short_number(ratio(p.worst)), "x the limit (",
                p.worst.name, p.worst.where.empty() ? "" : ", ", terminal_text(p.worst.where), ")");
    if (p.same_contract) out += text(", bits equal in ", share_text(p.equal_bits, p.elements));
    out += '\n';
  }
  for (const CheckpointResult& r : c.results) {
    for (const std::string& detail : r.details) {
      out += text("        ", terminal_text(r.device), " ", terminal_text(detail), '\n');
    }
  }
  const size_t all = c.results.size();
  std::vector<size_t> every(all);
  for (size_t i = 0; i < all; ++i) every[i] = i;
  return out + text("      again: ",
                    terminal_text(repeat_command(c.results.front(), joined(every, devices))), '\n');
}

}  // namespace

std::string comparison_text(const std::vector<Comparison>& comparisons,
                            const std::vector<std::string>& devices, bool colour) {
  using Key = std::pair<std::string, std::string>;
  std::vector<Key> order;
  std::map<Key, Row> rows;
  std::map<std::tuple<Key, Finding, std::string>, Group> groups;
  for (const Comparison& c : comparisons) {
    const Key key{c.results.front().block, dtype_of(c)};
    if (!rows.count(key)) order.push_back(key);
    rows[key].add(c, devices);
    if (c.finding != Finding::agree) groups[{key, c.finding, c.words}].add(c);
  }
  std::map<std::string, size_t> place;  // a block's rows are neighbours
  for (const Key& key : order) place.try_emplace(key.first, place.size());
  std::stable_sort(order.begin(), order.end(), [&](const Key& a, const Key& b) {
    return place.at(a.first) < place.at(b.first);
  });
  Table table;
  table.add_column("block", false);
  table.add_column("dtype", false);
  for (const char* title : {"checkpoints", "agree"}) table.add_column(title, true);
  for (const std::string& device : devices) table.add_column("alone: " + device, true);
  for (const char* title : {"suspect", "split", "not compared", "bits equal", "worst/limit"}) {
    table.add_column(title, true);
  }
  table.add_column("gate", false);
  table.add_column("pair", false);
  for (const Key& key : order) {
    Row& row = rows.at(key);
    const auto count = [&](int64_t n, bool good) {
      return Table::Cell{std::to_string(n), colour && n > 0 && !good ? "\x1b[1;31m" : ""};
    };
    std::vector<Table::Cell> cells = {{terminal_text(key.first), ""},
                                      {terminal_text(key.second), ""},
                                      count(row.checkpoints, true),
                                      count(row.findings[Finding::agree], true)};
    for (const int64_t n : row.alone) cells.push_back(count(n, false));
    cells.push_back(count(row.findings[Finding::suspect], false));
    cells.push_back(count(row.findings[Finding::split], false));
    cells.push_back(count(row.findings[Finding::not_compared], false));
    cells.push_back({share_text(row.equal_bits, row.elements), ""});
    cells.push_back({row.worst < 0 ? "-" : short_number(row.worst), ""});
    cells.push_back({row.gate, ""});
    cells.push_back({terminal_text(row.pair), ""});
    table.add_row(std::move(cells));
  }
  std::string out = table.to_text();
  for (const auto& [key, group] : groups) {
    const auto& [block, dtype] = std::get<0>(key);
    out += group_text(group, block, dtype, rows.at(std::get<0>(key)).checkpoints, devices);
  }
  return out;
}

}  // namespace plumb::harness
