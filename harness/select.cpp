#include "harness/select.h"

#include <algorithm>
#include <cstdlib>
#include <regex>

#include "blocks/catalog.h"
#include "kernels/error.h"

namespace plumb {

std::filesystem::path default_fixtures() {
  if (const char* named = std::getenv("PLUMB_FIXTURES"); named && *named) return named;
  std::error_code ignored;
  const std::filesystem::path source = PLUMB_SOURCE_FIXTURES;
  if (std::filesystem::is_directory(source, ignored)) return source;
  const auto executable = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const auto installed =
      executable.parent_path().parent_path() / "share" / "plumbline" / "fixtures";
  if (std::filesystem::is_directory(installed, ignored)) return installed;
  throw UsageError(text("[fixtures] the project's recordings are not at ", source.string(), " nor ",
                        installed.string(), "; name some with --fixture or PLUMB_FIXTURES"));
}

std::vector<std::filesystem::path> selected_recordings(const Selection& selection) {
  if (selection.fixtures.empty()) return find_recordings(default_fixtures());
  std::vector<std::filesystem::path> out;
  for (const std::string& fixture : selection.fixtures) {
    const auto found = find_recordings(fixture);
    out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

std::vector<size_t> selected_checkpoints(const Selection& selection, const Recording& recording) {
  const std::vector<Checkpoint>& all = recording.checkpoints();
  std::vector<size_t> out;
  const auto block_matches = [&](size_t i) { return selection.wants(all[i].block); };
  // An id is taken literally: as an expression, "norm#1" would also find "norm#10".
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].id == selection.checkpoint && block_matches(i)) return {i};
  }
  try {
    const std::regex expression(selection.checkpoint);
    for (size_t i = 0; i < all.size(); ++i) {
      if (block_matches(i) &&
          (selection.checkpoint.empty() || std::regex_search(all[i].id, expression))) {
        out.push_back(i);
      }
    }
  } catch (const std::regex_error& error) {
    throw UsageError(text("[--checkpoint] \"", selection.checkpoint,
                          "\" is not a regular expression: ", error.what()));
  }
  return out;
}

bool Selection::wants(std::string_view block) const {
  if (blocks.empty() && suites.empty()) return true;
  if (std::find(blocks.begin(), blocks.end(), block) != blocks.end()) return true;
  return std::any_of(block_suites().begin(), block_suites().end(), [&](const BlockSuite& suite) {
    return std::find(suites.begin(), suites.end(), suite.name) != suites.end() &&
           std::find(suite.blocks.begin(), suite.blocks.end(), block) != suite.blocks.end();
  });
}

namespace {

template <class Entry>
std::string names_of(const std::vector<Entry>& entries) {
  std::string out;
  for (const Entry& entry : entries) out += (out.empty() ? "" : ", ") + std::string(entry.name);
  return out;
}

}  // namespace

void require_known_blocks(const Selection& selection) {
  for (const std::string& block : selection.blocks) {
    require(block == "module" || find_block(block), "--block", "unknown block \"", block,
            "\"; known: ", names_of(block_catalog()));
  }
  for (const std::string& suite : selection.suites) {
    const auto named = [&](const BlockSuite& known) { return known.name == suite; };
    require(std::any_of(block_suites().begin(), block_suites().end(), named), "--suite",
            "unknown suite \"", suite, "\"; known: ", names_of(block_suites()));
  }
}

}  // namespace plumb
