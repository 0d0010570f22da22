#include "harness/bench/report.h"

#include <nlohmann/json.hpp>

#include "harness/io/json_line.h"
#include "harness/io/table.h"
#include "harness/report/console.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

using Json = nlohmann::ordered_json;

std::string percent(double share) { return short_number(100 * share) + " %"; }

}  // namespace

std::string ceilings_json(const Device& device, DType dtype, const Ceilings& ceilings) {
  return json_line(Json{{"type", "ceilings"},
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
                       {"launches", result.replayed ? "replayed" : "queued"},
                       {"bytes", result.cost.bytes},
                       {"flops", result.cost.flops},
                       {"gb_per_s", 1e-9 * result.cost.bytes / result.median},
                       {"tflop_per_s", 1e-12 * result.cost.flops / result.median},
                       {"share", share.value},
                       {"share_of", share.of_matrix ? "matrix" : "copy"}});
    if (result.copy > 0) {
      object.update(Json{{"copy_us", 1e6 * result.copy},
                         {"share_of_copy_of_size", result.copy / result.median}});
    }
  }
  return json_line(object);
}

std::string bench_table(const std::vector<BenchResult>& results, const Ceilings& ceilings) {
  Table table;
  for (const char* title : {"case", "impl", "status"}) table.add_column(title, false);
  for (const char* title : {"median us", "p10", "p90", "GB/s", "TFLOP/s", "share"}) {
    table.add_column(title, true);
  }
  table.add_column("of", false);
  table.add_column("of a copy its size", true);
  std::string reasons;
  for (const BenchResult& r : results) {
    std::vector<Table::Cell> row;
    const auto cell = [&](const std::string& words) { row.push_back({words, ""}); };
    cell(r.name);
    cell(r.impl.size() > 40 ? text(r.impl.substr(0, 37), "...") : r.impl);
    cell(std::string(name_of(r.status)));
    if (r.status == Status::pass) {
      const Share share = share_of_ceiling(r, ceilings);
      for (const double seconds : {r.median, r.p10, r.p90}) cell(short_number(1e6 * seconds));
      cell(short_number(1e-9 * r.cost.bytes / r.median));
      cell(short_number(1e-12 * r.cost.flops / r.median));
      cell(percent(share.value));
      cell(share.of_matrix ? "matrix" : "copy");
      cell(r.copy > 0 ? percent(r.copy / r.median) : "");
    } else {
      for (int i = 0; i < 8; ++i) cell("");
      reasons += text(r.name, ": ", r.reason, "\n");
    }
    table.add_row(std::move(row));
  }
  return text("copy ", short_number(1e-9 * ceilings.copy), " GB/s, matrix ",
              short_number(1e-12 * ceilings.matrix), " TFLOP/s\n", table.to_text(), reasons);
}

std::string model_bench_json(const ModelBenchResult& result, const Device& device,
                             const ModelBenchLabels& labels) {
  Json object = {{"type", "model_bench"},
                 {"status", std::string(name_of(result.status))},
                 {"reason", result.reason},
                 {"model", labels.model},
                 {"dtype", std::string(name_of(labels.dtype))},
                 {"device", device.name()},
                 {"tokens", labels.options.tokens},
                 {"steps", labels.options.steps},
                 {"impl", result.impl},
                 {"guard_error", result.guard_error},
                 {"guard_limit", result.guard_limit}};
  if (result.status == Status::pass) {
    object.update(
        Json{{"load_s", labels.load},
             {"prefill_s", result.prefill},
             {"prefill_tokens_per_s", static_cast<double>(labels.options.tokens) / result.prefill},
             {"decode_us", 1e6 * result.decode},
             {"decode_p10_us", 1e6 * result.decode_p10},
             {"decode_p90_us", 1e6 * result.decode_p90},
             {"decode_tokens_per_s", 1 / result.decode},
             {"step_bytes", result.step.bytes},
             {"step_flops", result.step.flops},
             {"copy_gb_per_s", 1e-9 * labels.copy},
             {"share_of_copy", decode_share(result, labels.copy)},
             {"weight_bytes", labels.weight_bytes},
             {"state_bytes", result.state_bytes}});
    if (device.host_owner()) {
      object["peak_rss_bytes"] = result.peak_rss;
      object["allowed_rss_bytes"] = allowed_rss(result, labels.weight_bytes);
    }
  }
  return json_line(object);
}

std::string model_bench_text(const ModelBenchResult& r, const Device& device,
                             const ModelBenchLabels& labels) {
  const std::string title = text(labels.model, ", ", name_of(labels.dtype), "\n");
  if (r.status != Status::pass) return text(title, name_of(r.status), ": ", r.reason, "\n");
  const auto gigabytes = [](double bytes) { return text(short_number(1e-9 * bytes), " GB"); };
  const auto tokens = static_cast<double>(labels.options.tokens);
  std::string out = text(
      title, "prefill  ", tokens, " tokens in ", short_number(1e3 * r.prefill), " ms, ",
      short_number(tokens / r.prefill), " tokens/s\n", "decode   ", short_number(1e3 * r.decode),
      " ms a token (", short_number(1e3 * r.decode_p10), " to ", short_number(1e3 * r.decode_p90),
      "), ", short_number(1 / r.decode), " tokens/s\n", "moved    ", gigabytes(r.step.bytes),
      " a token, ", percent(decode_share(r, labels.copy)), " of what a copy moves (",
      gigabytes(labels.copy), "/s)\n", "checked  decoded logits against those of one call: error ",
      short_number(r.guard_error), ", allowed ", short_number(r.guard_limit), "\n");
  if (device.host_owner()) {
    out += text("memory   peak ", gigabytes(static_cast<double>(r.peak_rss)), ", allowed ",
                gigabytes(static_cast<double>(allowed_rss(r, labels.weight_bytes))), ": weights ",
                gigabytes(static_cast<double>(labels.weight_bytes)), ", keys, values and states ",
                gigabytes(static_cast<double>(r.state_bytes)), ", 256 MiB\n");
  }
  return out;
}

}  // namespace plumb::harness
