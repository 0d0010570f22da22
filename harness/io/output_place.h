// Where what is written under a path ends up.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "harness/io/file.h"

namespace plumb::harness {

// The target of a path, through links, though it may not exist yet: a new file is to replace that,
// not the link. Throws UsageError for a circle of links.
std::filesystem::path behind_links(std::filesystem::path path);

// Open for writing, where a new file must not replace what is there: a device, a FIFO, the file
// that stdout or stderr is redirected to. -1: there is no such thing. Throws UsageError for a
// folder.
Descriptor open_in_place(const std::filesystem::path& path);

// Writes all of it, whatever signals come; `written` grows by what was. False: errno says why.
bool write_all(const Descriptor& to, std::string_view bytes, int64_t& written);

// Throws UsageError with errno's words: the file cannot be `action`, "created". `older_stays`: it
// is not the file itself that is written, but what was to replace it.
[[noreturn]] void refuse_to_write(const std::filesystem::path& path, const char* action,
                                  int64_t written = 0, bool older_stays = false);

// An option of the command line, and the file that it says to write or to read.
struct NamedFile {
  std::string option, path;
};

// Throws UsageError, which names the options, where two outputs would replace each other, one would
// replace what is read or a part of a recording, or has no name.
void require_different(const std::vector<NamedFile>& outputs,
                       const std::vector<NamedFile>& inputs = {});

}  // namespace plumb::harness
