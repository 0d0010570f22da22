#include "harness/report/console.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "harness/io/escape.h"
#include "harness/io/table.h"
#include "harness/referee/known_bug.h"
#include "harness/report/chain_text.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr std::string_view kIndent = "      ";

std::string_view colour_of(Status status) {
  switch (status) {
    case Status::pass: return "\x1b[32m";
    case Status::blind:
    case Status::unsupported: return "\x1b[33m";
    default: return "\x1b[1;31m";
  }
}

std::string painted(std::string_view words, Status status, bool colour) {
  return colour ? text(colour_of(status), words, "\x1b[0m") : std::string(words);
}

// "FAIL", "TIMEOUT", but "pass", "blind" and "unsupported".
std::string tag(Status status) {
  std::string name(name_of(status));
  if (!is_failure(status)) return name;
  for (char& c : name) c = c == '_' ? ' ' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return name;
}

std::string heading(const CheckpointResult& result, bool colour) {
  return text(painted(tag(result.status), result.status, colour), "  ", terminal_text(result.block),
              "  ", terminal_text(result.recording), "  ", terminal_text(result.checkpoint),
              "     ", terminal_text(result.device), ' ', terminal_text(result.dtype),
              result.fused ? " fused" : "");
}

std::string gate_words(const Gate& gate, const OutputVerdict& output) {
  if (gate.name == "conformance" && output.conformance) {
    return text("conformance: ", gate.statistic, " of ", output.conformance->n,
                " elements differ in bits from the rounded model, allowed ",
                short_number(gate.limit));
  }
  const auto reference = std::find_if(gate.derivation.begin(), gate.derivation.end(),
                                      [](const Term& term) { return term.name == "reference"; });
  const std::string name = terminal_text(gate.name);
  if (reference == gate.derivation.end()) {
    return text(name, ": ", short_number(gate.statistic), ", allowed ", short_number(gate.limit));
  }
  return text(name, name.ends_with("gain") ? " " : " error ", short_number(gate.statistic),
              ", allowed ", short_number(gate.limit), " (reference ",
              short_number(reference->value), ")");
}

// "   worst head 3 (4.2x the limit), in token >= 5"
std::string place_words(const Localisation& where) {
  std::string words;
  if (!where.worst.empty()) words = "   worst " + terminal_text(where.worst);
  if (where.region.empty()) return words;
  words += words.empty() ? "   " : ", ";
  return words + (where.region == "everywhere" ? "" : "in ") + terminal_text(where.region);
}

// Gates on wrong classes, bits and the like count what is wrong. The output's reason describes the
// first of them better than its number could.
bool is_count(const Gate& gate) {
  return gate.name == "structure" || gate.name == "classes" || gate.name == "padding" ||
         gate.name == "bits";
}

// One line per failed gate; the first of an output says where its error is.
std::string failed_gates(const CheckpointResult& result) {
  std::string lines;
  for (const OutputVerdict& output : result.outputs) {
    const std::string prefix =
        result.outputs.size() > 1 ? terminal_text(output.name) + ": " : std::string();
    bool first = true;
    for (const Gate& gate : output.gates) {
      if (gate.passed) continue;
      lines += text(kIndent, prefix);
      if (first && is_count(gate) && !output.reason.empty()) {
        lines += terminal_text(output.reason);
      } else {
        lines += gate_words(gate, output);
        if (first && output.where) {
          lines += place_words(*output.where);
        } else if (!gate.where.empty()) {
          lines += "   worst " + terminal_text(gate.where);
        }
      }
      lines += '\n';
      first = false;
    }
    if (!output.mismatch.empty()) {
      lines += text(kIndent, prefix, terminal_text(output.mismatch), '\n');
    }
  }
  return lines;
}

// Whether the failed gates say what `reason` says: then it is the reason of an output that failed.
bool told_by_gates(const CheckpointResult& result) {
  return std::any_of(
      result.outputs.begin(), result.outputs.end(), [&](const OutputVerdict& output) {
        const bool failed = std::any_of(output.gates.begin(), output.gates.end(),
                                        [](const Gate& gate) { return !gate.passed; });
        return failed && !output.reason.empty() &&
               result.reason.find(output.reason) != std::string::npos;
      });
}

std::string joined(const std::vector<std::string>& parts) {
  std::string all;
  for (const std::string& part : parts) all += (all.empty() ? "" : ", ") + terminal_text(part);
  return all;
}

std::string counted(int64_t n, const char* what) { return text(n, ' ', what, n == 1 ? "" : "s"); }

// A name in the table, where a long one would cost every row its line.
std::string cell(std::string_view name) {
  constexpr size_t kMost = 60;
  return terminal_text(name.substr(0, kMost)) + (name.size() > kMost ? "..." : "");
}

std::string overview_table(const Outcome& outcome, bool colour) {
  Table table;
  for (const char* title : {"block", "device", "dtype"}) table.add_column(title, false);
  table.add_column("checkpoints", true);
  std::vector<Status> shown;
  for (int i = 0; i < kStatusCount; ++i) {
    const auto status = static_cast<Status>(i);
    const bool always = status == Status::pass || status == Status::fail;
    if (always || outcome.counts[status] > 0) shown.push_back(status);
  }
  for (const Status status : shown) table.add_column(std::string(name_of(status)), true);
  table.add_column("worst/limit", true);
  table.add_column("gate", false);
  table.add_column("recording", false);
  for (const OverviewRow& row : outcome.rows) {
    std::vector<Table::Cell> cells = {{cell(row.block), ""},
                                      {cell(row.device), ""},
                                      {cell(row.dtype), ""},
                                      {std::to_string(row.counts.total()), ""}};
    for (const Status status : shown) {
      const int64_t n = row.counts[status];
      const bool paint = colour && n > 0 && status != Status::pass;
      cells.push_back({std::to_string(n), paint ? std::string(colour_of(status)) : ""});
    }
    cells.push_back({row.worst ? short_number(row.worst->ratio) : "-", ""});
    cells.push_back({row.worst ? cell(row.worst->gate) : "", ""});
    cells.push_back({row.worst ? cell(row.worst->recording) : "", ""});
    table.add_row(std::move(cells));
  }
  return table.to_text();
}

std::string blind_text(const Outcome& outcome, bool colour) {
  std::string nowhere, elsewhere;
  for (const BlindFeature& it : outcome.blind) {
    const std::string name = terminal_text(it.feature.empty() ? it.block + ": whatever it does"
                                                              : it.block + ": " + it.feature);
    if (it.everywhere()) {
      nowhere += text("  ", name, " (", counted(it.blind, "checkpoint"), " blind to it",
                      it.decides() ? "" : ": 16 bits rarely show it", ")\n");
    } else {
      elsewhere += text("  ", name, " (blind in ", it.blind, ", seen in ", it.seen, ")\n");
    }
  }
  if (!nowhere.empty()) {
    nowhere = text('\n', painted("blind", Status::blind, colour),
                   ": no selected checkpoint can see\n", nowhere);
  }
  return nowhere +
         (elsewhere.empty() ? "" : "\nseen only in some of the checkpoints that have it\n") +
         elsewhere;
}

std::string bugs_text(const Outcome& outcome) {
  std::string lines;
  for (const KnownBug& it : outcome.bugs) {
    if (it.passes == 0) continue;
    lines += text("  ", terminal_text(it.block), ": ", terminal_text(it.nearest.bug), " (in ",
                  counted(it.passes, "checkpoint"), ", caught in ", it.caught, ")\n");
  }
  return lines.empty() ? "" : "\nknown bugs that would pass\n" + lines;
}

std::string causes_text(const Outcome& outcome, bool colour) {
  std::string lines;
  for (const FailureGroup& group : outcome.failures) {
    if (group.checkpoints == 1) continue;  // reported in full
    lines += text(painted(tag(group.status), group.status, colour), "  ", cause_text(group), '\n');
    if (!group.again.empty()) lines += text(kIndent, "again: ", terminal_text(group.again), '\n');
  }
  return lines.empty() ? "" : text("\nfailures by cause\n", lines);
}

std::string group_text(const ReasonGroup& group) {
  return text("  ", terminal_text(group.block), ' ', terminal_text(group.device), ' ',
              terminal_text(group.dtype), " (", counted(group.checkpoints, "checkpoint"),
              "): ", terminal_text(group.reason), '\n');
}

std::string not_judged_text(const Outcome& outcome, bool colour) {
  std::string lines;
  Status last = Status::pass;
  for (const ReasonGroup& group : outcome.not_judged) {
    if (group.status != last) {
      lines += text('\n', painted(name_of(group.status), group.status, colour), '\n');
      last = group.status;
    }
    lines += group_text(group);
  }
  return lines;
}

// What the recording has that correct code cannot have given; limits are not from it.
std::string suspects_text(const Outcome& outcome) {
  std::string lines;
  for (const ReasonGroup& group : outcome.suspects) lines += group_text(group);
  return lines.empty() ? "" : "\nrecorded references that are not believed\n" + lines;
}

}  // namespace

std::string short_number(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  char buffer[64];
  const double size = std::fabs(x);
  const auto written = [&](std::to_chars_result end) { return std::string(buffer, end.ptr); };
  char* const last = buffer + sizeof(buffer);
  if (size < 1e15 && x == std::trunc(x)) return std::to_string(static_cast<int64_t>(x));
  if (size >= 0.1 && size < 999.5) {
    return written(std::to_chars(buffer, last, x, std::chars_format::general, size < 1 ? 2 : 3));
  }
  std::string number = written(std::to_chars(buffer, last, x, std::chars_format::scientific, 1));
  if (const size_t zero = number.find(".0e"); zero != std::string::npos) number.erase(zero, 2);
  const size_t sign = number.find('e') + 1;  // "3.1e-02" -> "3.1e-2", "1.2e+05" -> "1.2e5"
  while (number[sign + 1] == '0' && sign + 2 < number.size()) number.erase(sign + 1, 1);
  if (number[sign] == '+') number.erase(sign, 1);
  return number;
}

std::string seconds_text(double seconds) {
  char buffer[400];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), seconds, std::chars_format::fixed, 2);
  return std::string(buffer, end.ptr);
}

std::string margin_text(const Margin& margin) {
  return text(short_number(margin.margin), "x the limit", margin.passes() ? ": would pass" : "");
}

std::string failure_text(const CheckpointResult& result, bool colour) {
  std::string lines = heading(result, colour) + '\n';
  const std::string gates = failed_gates(result);
  if (!result.reason.empty() && !told_by_gates(result)) {
    lines += text(kIndent, terminal_text(result.reason), '\n');
  }
  lines += gates;
  if (result.known_bug) {
    lines += text(kIndent, terminal_text(words_of(*result.known_bug)), '\n');
  }
  for (const std::string& detail : result.details) {
    lines += text(kIndent, terminal_text(detail), '\n');
  }
  if (result.chain) lines += chain_table(*result.chain, true);
  for (const std::string& contract : result.looser) {
    lines += text(kIndent, "looser contract: ", terminal_text(contract), '\n');
  }
  if (!result.impl.empty()) lines += text(kIndent, "ran: ", joined(result.impl), '\n');
  if (!result.again.empty()) lines += text(kIndent, "again: ", terminal_text(result.again), '\n');
  return lines;
}

std::string cause_text(const FailureGroup& group) {
  std::string line =
      text(terminal_text(group.block), ' ', terminal_text(group.device), ' ',
           terminal_text(group.dtype), ": ", counted(group.checkpoints, "checkpoint"));
  if (!group.cause.empty()) line += text(" like this: ", terminal_text(group.cause));
  if (group.ratio > 0) line += text("; worst ", short_number(group.ratio), "x the limit");
  return text(line, group.ratio > 0 ? " in " : "; the first in ", terminal_text(group.recording),
              ' ', terminal_text(group.checkpoint));
}

std::string checkpoint_line(const CheckpointResult& result, bool colour) {
  std::string line = heading(result, colour);
  const auto worst = worst_gate(result);
  if (result.status == Status::pass && worst) {
    line +=
        text("   ", short_number(worst->ratio), " of the limit (", terminal_text(worst->gate), ')');
  } else if (!result.reason.empty()) {
    line += "   " + terminal_text(result.reason);
  }
  if (!result.blind_to.empty()) line += "   blind to: " + joined(result.blind_to);
  if (const std::vector<KnownBug> bugs = known_bugs_of({&result}); !bugs.empty()) {
    const Margin& nearest = bugs.front().nearest;
    line += text("   nearest known bug: ", terminal_text(nearest.bug), ", ", margin_text(nearest));
  }
  return line + '\n';
}

std::string closing_text(const Outcome& outcome, bool colour) {
  std::string out;
  if (!outcome.rows.empty()) out += overview_table(outcome, colour);
  out += blind_text(outcome, colour) + bugs_text(outcome) + suspects_text(outcome) +
         not_judged_text(outcome, colour);
  out += causes_text(outcome, colour);
  std::string counts;
  for (int i = 0; i < kStatusCount; ++i) {
    const auto status = static_cast<Status>(i);
    if (outcome.counts[status] == 0) continue;
    counts += text(counts.empty() ? "" : ", ", outcome.counts[status], ' ', name_of(status));
  }
  const Status mood = outcome.exit_code == 0                          ? Status::pass
                      : outcome.exit_code == exit_code(Status::blind) ? Status::blind
                                                                      : Status::fail;
  return text(out, out.empty() ? "" : "\n", counted(outcome.counts.total(), "checkpoint"), " in ",
              seconds_text(outcome.seconds), " s", counts.empty() ? "" : ": ", counts, "   ",
              painted(terminal_text(outcome.verdict), mood, colour), '\n');
}

bool is_terminal(int descriptor) { return ::isatty(descriptor) == 1; }

bool colours_wanted(int descriptor) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return is_terminal(descriptor) && !(no_color && *no_color) &&
         !(terminal && std::string_view(terminal) == "dumb");
}

}  // namespace plumb::harness
