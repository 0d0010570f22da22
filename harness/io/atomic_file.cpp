#include <fcntl.h>
#include <unistd.h>

#include <atomic>

#include "harness/io/file.h"
#include "harness/io/output_place.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

// Hidden, unique among threads and processes, and short enough for any name.
fs::path partial_name(const fs::path& path) {
  static std::atomic<int> counter{0};
  return path.parent_path() / text('.', path.filename().string().substr(0, 200), ".partial-",
                                   ::getpid(), '-', counter++);
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& path) : path_(path), descriptor_(open_in_place(path)) {
  if (descriptor_.number() >= 0) return;
  path_ = behind_links(path_);
  const fs::path partial = partial_name(path_);
  descriptor_ = Descriptor(::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (descriptor_.number() < 0) fail("created");
  partial_ = partial;
}

AtomicFile::~AtomicFile() {
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void AtomicFile::fail(const char* action) const {
  refuse_to_write(path_, action, written_, !partial_.empty());
}

void AtomicFile::write(std::string_view bytes) {
  if (!write_all(descriptor_, bytes, written_)) fail("written");
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

}  // namespace plumb::harness
