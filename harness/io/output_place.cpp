#include "harness/io/output_place.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/core/error.h"

namespace plumb::harness {

namespace fs = std::filesystem;

namespace {

// stdout or stderr where it is this file: that of /dev/stdout; -1: neither is.
int standard_stream(const struct stat& file) {
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat other {};
    if (::fstat(stream, &other) != 0) continue;
    if (other.st_dev == file.st_dev && other.st_ino == file.st_ino) return stream;
  }
  return -1;
}

bool replaces(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return true;
  return S_ISREG(status.st_mode) && standard_stream(status) < 0;
}

fs::path place_of(const fs::path& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(behind_links(path), error);
  const fs::path place = fs::weakly_canonical(absolute, error);
  return error ? absolute : place;
}

// Whether the file is there and of a recording or a model. --out writes tensors, too: only
// those with a recording or a model in their folder count.
bool is_recorded(const NamedFile& file, const fs::path& path) {
  std::error_code no;
  if (!fs::exists(path, no)) return false;
  const auto beside = [&](const char* name) { return fs::exists(path.parent_path() / name, no); };
  return path.filename() == "recording.json" ||
         (path.extension() == ".safetensors" &&
          (file.option != "--out" || beside("recording.json") || beside("config.json")));
}

}  // namespace

fs::path behind_links(fs::path path) {
  constexpr int kMostLinks = 40;  // what Linux follows
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  require(!fs::is_symlink(path, error), "write", path.string(), ": is a circle of links");
  return path;
}

Descriptor open_in_place(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return Descriptor();
  if (S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    refuse_to_write(path, "written");
  }
  const int stream = standard_stream(status);
  if (S_ISREG(status.st_mode) && stream < 0) return Descriptor();
  // A file that a stream writes is written at the stream's own position.
  Descriptor out(S_ISREG(status.st_mode) ? ::fcntl(stream, F_DUPFD_CLOEXEC, 0)
                                         : ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  if (out.number() < 0) refuse_to_write(path, "opened");
  return out;
}

bool write_all(const Descriptor& to, std::string_view bytes, int64_t& written) {
  constexpr size_t kLargestWrite = size_t{1} << 30;  // Linux transfers at most 2^31 - 4096 at once
  while (!bytes.empty()) {
    const ssize_t done = ::write(to.number(), bytes.data(), std::min(bytes.size(), kLargestWrite));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(done));
    written += done;
  }
  return true;
}

void refuse_to_write(const fs::path& path, const char* action, int64_t written, bool older_stays) {
  throw UsageError(text("[write] ", path.string(), ": cannot be ", action, ": ",
                        std::strerror(errno), " (after ", written, " bytes)",
                        older_stays ? "; what was there before is unchanged" : ""));
}

void require_different(const std::vector<NamedFile>& outputs,
                       const std::vector<NamedFile>& inputs) {
  std::vector<std::pair<fs::path, const NamedFile*>> written;
  for (const NamedFile& file : outputs) {
    require(!file.path.empty(), file.option.c_str(), "is empty; name a file");
    if (!replaces(file.path)) continue;
    const fs::path place = place_of(file.path);
    for (const auto& [other, first] : written) {
      require(place != other, file.option.c_str(), file.path, " is the file that ", first->option,
              ' ', first->path, " writes; give each a file of its own");
    }
    for (const NamedFile& input : inputs) {
      require(place != place_of(input.path), file.option.c_str(), file.path, " is the file that ",
              input.option, ' ', input.path, " reads; name another");
    }
    require(!is_recorded(file, place), file.option.c_str(), file.path,
            " is part of a recording, which would be lost; name another file");
    written.emplace_back(place, &file);
  }
}

}  // namespace plumb::harness
