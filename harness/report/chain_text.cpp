#include "harness/report/chain_text.h"

#include <cmath>
#include <map>

#include "harness/io/escape.h"
#include "harness/io/table.h"
#include "harness/judge/sums.h"
#include "harness/report/console.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

std::string figure(double x) { return std::isnan(x) ? "-" : short_number(x); }

// Of every place the row that is closest to its chained limit.
std::vector<const ChainRow*> worst_rows(const ChainReport& chain) {
  std::vector<const ChainRow*> out;
  std::map<std::string, size_t> index;
  for (const ChainRow& row : chain.rows) {
    if (row.is_state()) continue;
    const std::string place = row.checkpoint.substr(0, row.checkpoint.rfind('#'));
    const auto [at, fresh] = index.try_emplace(place, out.size());
    if (fresh) out.push_back(&row);
    const ChainRow& worst = *out[at->second];
    const double here = quotient(row.chained, row.chained_limit);
    if (exceeds(here, quotient(worst.chained, worst.chained_limit))) out[at->second] = &row;
  }
  return out;
}

// All layers of all steps, and the states that are not as they should be.
std::vector<const ChainRow*> all_rows(const ChainReport& chain) {
  std::vector<const ChainRow*> out;
  for (const ChainRow& row : chain.rows) {
    if (!row.is_state() || row.diagnosis != Diagnosis::clean) out.push_back(&row);
  }
  return out;
}

std::string name_of_row(const ChainRow& row) {
  const std::string checkpoint = terminal_text(row.checkpoint);
  return row.is_state() ? text(checkpoint, ' ', terminal_text(row.output)) : checkpoint;
}

std::string value_of(const OutputVerdict& output, std::string_view name) {
  for (const NamedValue& value : output.details.values) {
    if (value.name == name) return short_number(value.value);
  }
  return "-";
}

std::string logits_line(const OutputVerdict& logits) {
  std::string out = "      logits:";
  for (const Gate& gate : logits.gates) {
    if (gate.name.starts_with("KL")) {
      out += text(' ', gate.name, ' ', short_number(gate.statistic), " (allowed ",
                  short_number(gate.limit), "),");
    }
  }
  return text(out, " top-1 decidable for ", value_of(logits, "decidable"), " of ",
              value_of(logits, "tokens"), " tokens, top-5 overlap ",
              value_of(logits, "top-5 overlap"), ", NLL ", value_of(logits, "NLL difference"),
              " +- ", value_of(logits, "NLL standard error"), '\n');
}

// "model.layers.1" of a module in it, else the module.
std::string layer_of(const std::string& path) {
  const size_t digit = path.find_first_of("0123456789");
  return digit == std::string::npos || path[digit - 1] != '.'
             ? path
             : path.substr(0, path.find('.', digit));
}

// A loss's gradients, from the loss back: each, or of every layer the worst.
std::string gradient_table(const ChainReport& chain, bool each) {
  Table table;
  table.add_column("      gradient", false);
  for (const char* title : {"worst statistic", "allowed"}) table.add_column(title, true);
  table.add_column("", false);
  std::vector<const ChainRow*> rows;
  const auto share = [](const ChainRow& row) { return quotient(row.chained, row.chained_limit); };
  for (const ChainRow& row : chain.rows) {
    const bool same =
        !rows.empty() && layer_of(rows.back()->checkpoint) == layer_of(row.checkpoint);
    if (each || !same) rows.push_back(&row);
    else if (exceeds(share(row), share(*rows.back()))) rows.back() = &row;
  }
  for (const ChainRow* row : rows) {
    table.add_row({{text("      ", terminal_text(row->output)), ""},
                   {figure(row->chained), ""},
                   {figure(row->chained_limit), ""},
                   {std::string(name_of(row->diagnosis)), ""}});
  }
  return table.to_text();
}

}  // namespace

std::string chain_table(const ChainReport& chain, bool every_step) {
  const bool of_gradients = !chain.rows.empty() && chain.rows[0].output.starts_with("d_");
  if (of_gradients) return gradient_table(chain, every_step);
  Table table;
  table.add_column("      checkpoint", false);
  for (const char* title : {"introduced", "allowed", "inherited", "chained", "allowed", "forecast",
                            "excess", "shadow"}) {
    table.add_column(title, true);
  }
  table.add_column("", false);
  for (const ChainRow* row : every_step ? all_rows(chain) : worst_rows(chain)) {
    table.add_row({{text("      ", name_of_row(*row)), ""},
                   {figure(row->isolated), ""},
                   {figure(row->isolated_limit), ""},
                   {figure(row->inherited(chain.rows)), ""},
                   {figure(row->chained), ""},
                   {figure(row->chained_limit), ""},
                   {figure(row->forecast), ""},
                   {figure(row->excess()), ""},
                   {figure(row->shadow), ""},
                   {std::string(name_of(row->diagnosis)), ""}});
  }
  return table.to_text();
}

std::string chain_text(const CheckpointResult& result, bool every_step) {
  std::string out =
      text("chain  ", terminal_text(result.recording), "  ", terminal_text(result.device), ' ',
           terminal_text(result.dtype), "  ", name_of(result.status),
           result.reason.empty() ? "" : ": " + terminal_text(result.reason), '\n',
           chain_table(*result.chain, every_step));
  for (const OutputVerdict& output : result.outputs) {
    if (output.name == "logits" && !output.gates.empty()) out += logits_line(output);
  }
  for (const std::string& detail : result.details) {
    out += text("      ", terminal_text(detail), '\n');
  }
  return out;
}

}  // namespace plumb::harness
