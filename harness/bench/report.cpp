#include "harness/bench/report.h"

#include <nlohmann/json.hpp>

#include "harness/console.h"
#include "harness/table.h"
#include "kernels/error.h"

namespace plumb {
namespace {

using Json = nlohmann::ordered_json;

std::string line(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string percent(double share) { return short_number(100 * share) + " %"; }

}  // namespace

std::string ceilings_json(const Device& device, DType dtype, const Ceilings& ceilings) {
  return line({{"type", "ceilings"},
               {"device", device.name()},
               {"dtype", std::string(name_of(dtype))},
               {"copy_gb_per_s", 1e-9 * ceilings.copy},
               {"matrix_tflop_per_s", 1e-12 * ceilings.matrix}});
}

std::string bench_json(const BenchResult& result, const Device& device, const Ceilings& ceilings) {
  Json object = {{"type", "bench"},
                 {"status", std::string(name_of(result.status))},
                 {"reason", result.reason},
                 {"block", result.block},
                 {"case", result.name},
                 {"shape", result.shape},
                 {"tokens", result.tokens},
                 {"context", result.context},
                 {"dtype", std::string(name_of(result.dtype))},
                 {"device", device.name()},
                 {"impl", result.impl}};
  if (result.status == Status::pass) {
    const Share share = share_of_ceiling(result, ceilings);
    object.update(Json{{"median_us", 1e6 * result.median},
                       {"p10_us", 1e6 * result.p10},
                       {"p90_us", 1e6 * result.p90},
                       {"calls", result.calls},
                       {"sets", result.sets},
                       {"bytes", result.cost.bytes},
                       {"flops", result.cost.flops},
                       {"gb_per_s", 1e-9 * result.cost.bytes / result.median},
                       {"tflop_per_s", 1e-12 * result.cost.flops / result.median},
                       {"share", share.value},
                       {"share_of", share.of_matrix ? "matrix" : "copy"}});
  }
  return line(object);
}

std::string bench_table(const std::vector<BenchResult>& results, const Ceilings& ceilings) {
  Table table;
  for (const char* title : {"case", "impl", "status"}) table.add_column(title, false);
  for (const char* title : {"median us", "p10", "p90", "GB/s", "TFLOP/s", "share"}) {
    table.add_column(title, true);
  }
  table.add_column("of", false);
  std::string reasons;
  for (const BenchResult& r : results) {
    std::vector<Table::Cell> row;
    const auto cell = [&](const std::string& words) { row.push_back({words, ""}); };
    cell(r.name);
    cell(r.impl.size() > 40 ? r.impl.substr(0, 37) + "..." : r.impl);
    cell(std::string(name_of(r.status)));
    if (r.status == Status::pass) {
      const Share share = share_of_ceiling(r, ceilings);
      for (const double seconds : {r.median, r.p10, r.p90}) cell(short_number(1e6 * seconds));
      cell(short_number(1e-9 * r.cost.bytes / r.median));
      cell(short_number(1e-12 * r.cost.flops / r.median));
      cell(percent(share.value));
      cell(share.of_matrix ? "matrix" : "copy");
    } else {
      for (int i = 0; i < 7; ++i) cell("");
      reasons += text(r.name, ": ", r.reason, "\n");
    }
    table.add_row(std::move(row));
  }
  return text("copy ", short_number(1e-9 * ceilings.copy), " GB/s, matrix ",
              short_number(1e-12 * ceilings.matrix), " TFLOP/s\n", table.to_text(), reasons);
}

}  // namespace plumb
