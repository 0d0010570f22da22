#include "harness/report/markdown.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "harness/io/escape.h"
#include "harness/report/console.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr size_t kMostFailures = 20;
constexpr size_t kMostLinesOfOne = 12;  // of one failure's text
constexpr size_t kMostRows = 200;       // of the table
constexpr size_t kMostListed = 50;      // of features and reasons
constexpr size_t kMostBugs = 20;
constexpr size_t kLongest = 300;  // characters of a name or reason

std::string name(std::string_view words) {
  const bool cut = words.size() > kLongest;
  return markdown_text(words.substr(0, kLongest)) + (cut ? "..." : "");
}

std::string left_out(size_t all, size_t shown, const char* what) {
  return all > shown ? text("\n", all - shown, " more ", what, " are in the JSON lines.\n") : "";
}

std::string table(const Outcome& outcome) {
  std::string out =
      "| block | device | dtype | pass | fail | blind | unsupported | other | worst statistic / "
      "limit "
      "| at |\n|---|---|---|--:|--:|--:|--:|--:|--:|---|\n";
  for (const OverviewRow& row : outcome.rows) {
    if (&row - outcome.rows.data() == kMostRows) break;
    const Counts& n = row.counts;
    const int64_t other =
        n.total() - n[Status::pass] - n[Status::fail] - n[Status::blind] - n[Status::unsupported];
    out += text("| ", name(row.block), " | ", name(row.device), " | ", name(row.dtype), " | ",
                n[Status::pass], " | ", n[Status::fail], " | ", n[Status::blind], " | ",
                n[Status::unsupported], " | ", other, " | ");
    if (row.worst) {
      out += text(short_number(row.worst->ratio), " (", name(row.worst->gate), ") | ",
                  name(row.worst->recording), ' ', name(row.worst->checkpoint), " |\n");
    } else {
      out += "- | |\n";
    }
  }
  return out + left_out(outcome.rows.size(), kMostRows, "rows");
}

// The first lines of a failure, with the command that repeats it always among them.
std::string first_lines(const CheckpointResult& result) {
  CheckpointResult shown = result;
  shown.again.clear();
  const std::string all = failure_text(shown);
  std::string out;
  size_t lines = 0;
  for (size_t start = 0; start < all.size() && lines < kMostLinesOfOne; ++lines) {
    const size_t end = all.find('\n', start);
    out += all.substr(start, std::min(end - start, 4 * kLongest)) + '\n';
    start = end + 1;
  }
  if (result.again.empty()) return out;
  return text(out, "      again: ", terminal_text(result.again).substr(0, 4 * kLongest), '\n');
}

// The failure that a group tells of.
const CheckpointResult* worst_of(const FailureGroup& group,
                                 const std::vector<CheckpointResult>& results) {
  const auto found = std::find_if(results.begin(), results.end(), [&](const auto& result) {
    return result.checkpoint == group.checkpoint && result.recording == group.recording &&
           result.device == group.device && is_failure(result.status) &&
           result.again == group.again && result.reason == group.reason;
  });
  return found == results.end() ? nullptr : &*found;
}

std::string failures(const std::vector<CheckpointResult>& results, const Outcome& outcome) {
  std::string blocks;
  for (const FailureGroup& group : outcome.failures) {
    if (&group - outcome.failures.data() == kMostFailures) break;
    const CheckpointResult* worst = worst_of(group, results);
    if (worst) blocks += first_lines(*worst);
    if (group.checkpoints > 1) {
      blocks += text("      ", cause_text(group).substr(0, 4 * kLongest), '\n');
    }
    blocks += '\n';
  }
  if (outcome.failures.empty()) return "";
  return "\n### Failures\n\n" + markdown_code(blocks) +
         left_out(outcome.failures.size(), kMostFailures, "causes of failures");
}

std::string blind(const Outcome& outcome) {
  std::string out;
  size_t shown = 0;
  for (const BlindFeature& it : outcome.blind) {
    if (shown++ == kMostListed) break;
    const std::string what = it.feature.empty() ? "everything" : name(it.feature);
    out += text("- ", name(it.block), ": ", what,
                it.everywhere() ? text(" is **seen by no checkpoint** (", it.blind, " have it)")
                                : text(" (blind in ", it.blind, ", seen in ", it.seen, ')'),
                '\n');
  }
  return out.empty()
             ? ""
             : "\n### Blind to\n\n" + out + left_out(outcome.blind.size(), kMostListed, "features");
}

std::string known_bugs(const Outcome& outcome) {
  if (outcome.bugs.empty()) return "";
  std::string out =
      "\n### Known bugs nearest to passing\n\n| block | bug | would pass in | caught in | nearest "
      "| "
      "at |\n|---|---|--:|--:|---|---|\n";
  for (const KnownBug& it : outcome.bugs) {
    if (&it - outcome.bugs.data() == kMostBugs) break;
    out += text("| ", name(it.block), " | ", name(it.nearest.bug), " | ", it.passes, " | ",
                it.caught, " | ", margin_text(it.nearest), " | ", name(it.recording), ' ',
                name(it.checkpoint), " on ", name(it.device), ' ', name(it.dtype), " |\n");
  }
  return out + left_out(outcome.bugs.size(), kMostBugs, "known bugs");
}

std::string suspects(const Outcome& outcome) {
  std::string out;
  for (const ReasonGroup& group : outcome.suspects) {
    out += text("- ", name(group.block), " on ", name(group.device), ' ', name(group.dtype), " (",
                group.checkpoints, "): ", name(group.reason), '\n');
  }
  return out.empty() ? "" : "\n### Recorded references that are not believed\n\n" + out;
}

std::string not_judged(const Outcome& outcome) {
  std::string out;
  size_t shown = 0;
  for (const ReasonGroup& group : outcome.not_judged) {
    if (shown++ == kMostListed) break;
    out += text("- ", name_of(group.status), ": ", name(group.block), " on ", name(group.device),
                ' ', name(group.dtype), " (", group.checkpoints, "): ", name(group.reason), '\n');
  }
  return out.empty() ? ""
                     : "\n### Not judged\n\n" + out +
                           left_out(outcome.not_judged.size(), kMostListed, "reasons");
}

std::string counts(const Outcome& outcome) {
  std::string out;
  for (int i = 0; i < kStatusCount; ++i) {
    const auto status = static_cast<Status>(i);
    const int64_t n = outcome.counts[status];
    if (n > 0) out += text(out.empty() ? "" : ", ", n, ' ', name(name_of(status)));
  }
  return out.empty() ? "no checkpoints" : out;
}

}  // namespace

std::string markdown_summary(const RunInfo& run, const std::vector<CheckpointResult>& results,
                             const Outcome& outcome) {
  std::string out = text("## ", outcome.exit_code == 0 ? "Verified" : "Not verified", "\n\n**",
                         markdown_text(outcome.verdict), "** (exit code ", outcome.exit_code,
                         ")\n\n", counts(outcome));
  if (std::isfinite(outcome.seconds)) out += text(" in ", seconds_text(outcome.seconds), " s");
  for (const std::string& device : run.devices) out += ", " + name(device);
  out += ".\n";
  if (!outcome.rows.empty()) out += text("\n", table(outcome));
  out += failures(results, outcome) + blind(outcome) + known_bugs(outcome) + suspects(outcome) +
         not_judged(outcome);
  return out + text("\n", name(run.version), run.started.empty() ? "" : ", ", name(run.started),
                    ": <code>", name(run.command), "</code>\n");
}

}  // namespace plumb::harness
