#include "harness/line_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/error.h"

namespace plumb {

namespace fs = std::filesystem;

namespace {

// What a link stands for, though it does not exist yet: the rename shall replace that, not the
// link.
fs::path behind_links(fs::path path) {
  constexpr int kMostLinks = 40;  // what Linux follows
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    path = path.parent_path() / fs::read_symlink(path, error);
  }
  require(!fs::is_symlink(path, error), "write", path.string(), ": is a circle of links");
  return path;
}

}  // namespace

void LineFile::fail(const char* action) {
  const int code = errno;
  if (!partial_.empty()) ::unlink(partial_.c_str());
  throw UsageError(text("[write] ", path_.string(), ": cannot be ", action, ": ",
                        std::strerror(code), " (after ", written_, " bytes)",
                        partial_.empty() ? "" : "; what was there before is unchanged"));
}

LineFile::LineFile(const fs::path& path) : path_(path) {
  require(path_.has_filename(), "write", path.string(), ": is not the name of a file");
  struct stat status {};
  const bool exists = ::stat(path_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    fail("written");
  }
  if (exists && !S_ISREG(status.st_mode)) {
    descriptor_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
    if (descriptor_.number() < 0) fail("opened");
    return;
  }
  path_ = behind_links(path_);
  const fs::path partial = path_.string() + ".partial";
  descriptor_ = Descriptor(
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (descriptor_.number() < 0) fail("created");
  if (::flock(descriptor_.number(), LOCK_EX | LOCK_NB) != 0) {
    throw UsageError(
        text("[write] ", path_.string(), ": another run is writing ", partial.string()));
  }
  if (::ftruncate(descriptor_.number(), 0) != 0) fail("emptied");
  partial_ = partial;
}

void LineFile::write(std::string_view line) {
  const std::string whole = text(line, '\n');
  const char* next = whole.data();
  size_t left = whole.size();
  while (left > 0) {
    const ssize_t done = ::write(descriptor_.number(), next, left);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("written");
    next += done;
    left -= static_cast<size_t>(done);
    written_ += done;
  }
}

void LineFile::commit() {
  if (partial_.empty()) return;
  if (::fsync(descriptor_.number()) != 0) fail("synced");
  if (::rename(partial_.c_str(), path_.c_str()) != 0) fail("renamed into place");
  partial_.clear();
}

}  // namespace plumb
