#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "harness/file.h"
#include "kernels/error.h"

namespace plumb {
namespace {

namespace fs = std::filesystem;

// The file that a link stands for, so that the rename replaces that and not the link.
fs::path behind_links(const fs::path& path) {
  std::error_code error;
  const fs::path target = fs::is_symlink(path, error) ? fs::canonical(path, error) : path;
  return error ? path : target;
}

// Hidden, unique among threads and processes, and short enough for any name.
fs::path partial_name(const fs::path& path) {
  static std::atomic<int> counter{0};
  return path.parent_path() / text('.', path.filename().string().substr(0, 200), ".partial-",
                                   ::getpid(), '-', counter++);
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path) : path_(behind_links(path)) {
  struct stat status {};
  const bool exists = ::stat(path_.c_str(), &status) == 0;
  if (exists && S_ISDIR(status.st_mode)) {
    errno = EISDIR;
    fail("written");
  }
  if (exists && !S_ISREG(status.st_mode)) {
    descriptor_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  } else {
    partial_ = partial_name(path_);
    descriptor_ =
        Descriptor(::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  }
  if (descriptor_.number() < 0) {
    partial_.clear();
    fail("created");
  }
}

AtomicFile::~AtomicFile() {
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void AtomicFile::fail(const char* action) const {
  const int code = errno;
  throw UsageError(text("[write] ", path_.string(), ": cannot be ", action, ": ",
                        std::strerror(code), " (after ", written_, " bytes)",
                        partial_.empty() ? "" : "; what was there before is unchanged"));
}

void AtomicFile::write(const void* data, int64_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done =
        ::write(descriptor_.number(), next, static_cast<size_t>(std::min(bytes, int64_t{1} << 30)));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("written");
    next += done;
    bytes -= done;
    written_ += done;
  }
}

void AtomicFile::commit() {
  if (partial_.empty()) return;
  if (::fsync(descriptor_.number()) != 0) fail("synced");
  if (::rename(partial_.c_str(), path_.c_str()) != 0) fail("renamed into place");
  partial_.clear();
  // The new name is durable once the folder is synced; a file system that cannot do it has no say.
  const fs::path parent = path_.parent_path();
  const Descriptor folder(
      ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.number() >= 0) ::fsync(folder.number());
}

void write_file(const fs::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace plumb
