#include "harness/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "harness/io/printable.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr int64_t kLargestRead = int64_t{1} << 30;  // Linux transfers at most 2^31 - 4096 at once

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISSOCK(mode)) return "a socket";
  return "no regular file";
}

[[noreturn]] void refuse(const std::string& name, int code) {
  throw BadInput(text(name, ": cannot be opened: ", std::strerror(code)));
}

void require_regular(const struct stat& status, const std::string& name) {
  if (S_ISREG(status.st_mode)) return;
  throw BadInput(text(name, ": is ", kind_of(status.st_mode), ", expected a regular file"));
}

// Asks for the kind before opening: to open a device can have effects.
Descriptor open_regular(int folder, const char* path, const std::string& name, bool follow) {
  struct stat status {};
  if (::fstatat(folder, path, &status, follow ? 0 : AT_SYMLINK_NOFOLLOW) != 0) refuse(name, errno);
  require_regular(status, name);
  const int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY | (follow ? 0 : O_NOFOLLOW);
  Descriptor descriptor(::openat(folder, path, flags));
  if (descriptor.number() < 0) refuse(name, errno);
  return descriptor;
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

bool is_plain_file_name(std::string_view name) {
  if (name.substr(0, 3) == "../") name.remove_prefix(3);
  if (name.empty() || name == "." || name == ".." || name.size() > 255) return false;
  return std::none_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '/' || c == '\\';
  });
}

// The kind may have changed since it was asked for; what is open now stays.
File File::checked(Descriptor descriptor, std::string name) {
  struct stat status {};
  if (::fstat(descriptor.number(), &status) != 0) refuse(name, errno);
  require_regular(status, name);
  return File(std::move(descriptor), std::move(name), status.st_size);
}

File File::open(const std::filesystem::path& path) {
  const std::string name = path.string();
  return checked(open_regular(AT_FDCWD, path.c_str(), name, true), name);
}

File File::open_beneath(const std::filesystem::path& folder, std::string_view name) {
  if (!is_plain_file_name(name)) {
    throw BadInput(text(folder.string(), ": refers to the file ", printable(name),
                        ", expected a plain file name, or ../ and a plain file name"));
  }
  const std::string full = (folder / name).lexically_normal().string();
  constexpr int kFolder = O_PATH | O_DIRECTORY | O_CLOEXEC;
  Descriptor place(::open(folder.empty() ? "." : folder.c_str(), kFolder));
  if (place.number() < 0) refuse(folder.string(), errno);
  if (name.substr(0, 3) == "../") {
    place = Descriptor(::openat(place.number(), "..", kFolder));
    if (place.number() < 0) refuse(full, errno);
    name.remove_prefix(3);
  }
  return checked(open_regular(place.number(), std::string(name).c_str(), full, false), full);
}

void File::read(int64_t offset, void* to, int64_t bytes) const {
  int64_t done = 0;
  while (done < bytes) {
    const auto wanted = static_cast<size_t>(std::min(bytes - done, kLargestRead));
    const ssize_t got =
        ::pread(descriptor_.number(), static_cast<char*>(to) + done, wanted, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw Error(text(name_, ": cannot be read: ", std::strerror(errno)));
    if (got == 0) {
      throw BadInput(text(name_, ": ends at byte ", offset + done, ", ", bytes - done,
                          " bytes are missing; the file was cut short or is being written"));
    }
    done += got;
  }
}

std::string File::read_all(int64_t limit) const {
  if (size_ > limit) {
    throw BadInput(
        text(name_, ": has ", size_, " bytes, more than the ", limit, " that are allowed"));
  }
  std::string out(static_cast<size_t>(size_), '\0');
  read(0, out.data(), size_);
  return out;
}

}  // namespace plumb::harness
