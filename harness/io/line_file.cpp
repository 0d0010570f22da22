#include "harness/io/line_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>

#include "harness/io/output_place.h"
#include "kernels/core/error.h"

namespace plumb::harness {

namespace fs = std::filesystem;

void LineFile::fail(const char* action) {
  const int code = errno;
  const bool older_stays = !partial_.empty();
  give_up();
  errno = code;
  refuse_to_write(path_, action, written_, older_stays);
}

void LineFile::give_up() {
  if (!partial_.empty()) ::unlink(partial_.c_str());
  partial_.clear();
}

LineFile::LineFile(const fs::path& path) : path_(path) {
  require(path_.has_filename(), "write", path.string(), ": is not the name of a file");
  descriptor_ = open_in_place(path_);
  if (descriptor_.number() >= 0) return;
  path_ = behind_links(path_);
  const fs::path partial = path_.string() + ".partial";
  descriptor_ = Descriptor(
      ::open(partial.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  if (descriptor_.number() < 0) refuse_to_write(path_, "created");
  if (::flock(descriptor_.number(), LOCK_EX | LOCK_NB) != 0) {
    throw UsageError(
        text("[write] ", path_.string(), ": another run is writing ", partial.string()));
  }
  if (::ftruncate(descriptor_.number(), 0) != 0) fail("emptied");
  partial_ = partial;
}

LineFile::~LineFile() {
  if (written_ == 0) give_up();
}

void LineFile::write(std::string_view line) {
  if (!write_all(descriptor_, text(line, '\n'), written_)) fail("written");
}

void LineFile::commit() {
  if (partial_.empty()) return;
  if (::fsync(descriptor_.number()) != 0) fail("synced");
  if (::rename(partial_.c_str(), path_.c_str()) != 0) fail("renamed into place");
  partial_.clear();
}

}  // namespace plumb::harness
