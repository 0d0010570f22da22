#include "harness/recording/select.h"

#include <algorithm>
#include <cstdlib>
#include <regex>

#include "blocks/catalog.h"
#include "harness/io/nearest_name.h"
#include "kernels/core/error.h"

namespace plumb::harness {

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

namespace {

// "llama-a1/decode-bf16" of the project's own; none where it has none.
std::vector<std::string> own_recordings() {
  std::vector<std::string> out;
  try {
    const std::filesystem::path root = default_fixtures();
    for (const auto& folder : find_recordings(root)) {
      out.push_back(folder.lexically_relative(root).generic_string());
    }
  } catch (const Error&) {  // the caller has an error of its own
  }
  return out;
}

}  // namespace

std::filesystem::path recording_folder(const std::string& named) {
  std::error_code ignored;
  if (std::filesystem::exists(named, ignored)) return named;
  const std::vector<std::string> own = own_recordings();
  if (!own.empty() && !named.empty() && std::filesystem::path(named).is_relative()) {
    const std::filesystem::path folder = default_fixtures() / named;
    if (std::filesystem::exists(folder, ignored)) return folder;
  }
  throw BadInput(text(named, ": is no folder here", own.empty() ? "" : ", nor a recording of ",
                      own.empty() ? "" : default_fixtures().string(), did_you_mean(named, own),
                      own.empty() ? "" : " (harness list shows all)"));
}

Recording open_recording(const std::string& named) {
  return Recording::open(recording_folder(named));
}

std::vector<std::filesystem::path> selected_recordings(const Selection& selection) {
  if (selection.fixtures.empty()) return find_recordings(default_fixtures());
  std::vector<std::filesystem::path> out;
  for (const std::string& fixture : selection.fixtures) {
    const auto found = find_recordings(recording_folder(fixture));
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
  const bool backward = !forward_of(block).empty();
  if (!direction.empty() && (direction == kBackward) != backward) return false;
  if (blocks.empty() && suites.empty()) return true;
  if (std::find(blocks.begin(), blocks.end(), block) != blocks.end()) return true;
  return std::any_of(blocks::block_suites().begin(), blocks::block_suites().end(),
                     [&](const blocks::BlockSuite& suite) {
                       return std::find(suites.begin(), suites.end(), suite.name) != suites.end() &&
                              std::find(suite.blocks.begin(), suite.blocks.end(), block) !=
                                  suite.blocks.end();
                     });
}

namespace {

template <class Entry>
std::vector<std::string> names_of(const std::vector<Entry>& entries) {
  std::vector<std::string> out;
  for (const Entry& entry : entries) out.emplace_back(entry.name);
  return out;
}

// Throws UsageError with all names, the nearest in front, unless `name` is one of them.
void require_known(const char* option, const char* what, const std::string& name,
                   const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  std::string all;
  for (const std::string& it : known) all += (all.empty() ? "" : ", ") + it;
  throw UsageError(text('[', option, "] unknown ", what, " \"", name, '"',
                        did_you_mean(name, known), "; known: ", all));
}

}  // namespace

void require_known_blocks(const Selection& selection) {
  std::vector<std::string> blocks = names_of(blocks::block_catalog());
  blocks.emplace_back("module");
  blocks.emplace_back(blocks::kOpBlock);
  for (const std::string& block : selection.blocks) {
    const std::string_view forward = forward_of(block);
    if (std::find(blocks.begin(), blocks.end(), forward) != blocks.end()) continue;
    require_known("--block", "block", block, blocks);
  }
  std::vector<std::string> suites = names_of(blocks::block_suites());
  suites.emplace_back(kOpSuite);
  for (const std::string& suite : selection.suites) {
    require_known("--suite", "suite", suite, suites);
  }
}

void require_some(const std::vector<size_t>& selected, const Selection& selection,
                  const Recording& recording) {
  if (!selected.empty()) return;
  std::vector<std::string> ids, blocks;
  for (const Checkpoint& checkpoint : recording.checkpoints()) {
    ids.push_back(checkpoint.id);
    if (std::find(blocks.begin(), blocks.end(), checkpoint.block) == blocks.end()) {
      blocks.push_back(checkpoint.block);
    }
  }
  std::string has;
  for (const std::string& block : blocks) has += (has.empty() ? "" : ", ") + block;
  throw UsageError(text("[selection] no checkpoint of ", recording.folder().string(), " matches",
                        did_you_mean(selection.checkpoint, ids), "; its blocks: ", has));
}

}  // namespace plumb::harness
