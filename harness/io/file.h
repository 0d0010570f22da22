// Files from outside, read with suspicion, and files written whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace plumb::harness {

// A file descriptor, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  int number() const { return number_; }

 private:
  int number_;
};

// A regular file, open for reading. Reads are positional (pread), so threads can share it, and a
// file that shrinks while it is read is an error, never a signal.
class File {
 public:
  // A file that the user named: symbolic links are followed. BadInput unless it can be read and is
  // a regular file; never blocks on a FIFO, never opens a device.
  static File open(const std::filesystem::path& path);

  // A file that another file names, hence not to be trusted. `name` is a plain file name, or "../"
  // and a plain file name; it is opened beneath `folder` or its parent, and no link is followed.
  static File open_beneath(const std::filesystem::path& folder, std::string_view name);

  // What a descriptor is of; BadInput unless it is a regular file, such as one in memory.
  static File checked(Descriptor descriptor, std::string name);

  const std::string& name() const { return name_; }  // for errors
  int64_t size() const { return size_; }             // when it was opened
  int descriptor() const { return descriptor_.number(); }

  // Exactly `bytes` bytes from `offset`. BadInput where the file ends earlier, Error where the disk
  // fails.
  void read(int64_t offset, void* to, int64_t bytes) const;
  // The whole file; BadInput where it is larger than `limit`.
  std::string read_all(int64_t limit) const;

 private:
  File(Descriptor descriptor, std::string name, int64_t size)
      : descriptor_(std::move(descriptor)), name_(std::move(name)), size_(size) {}

  Descriptor descriptor_;
  std::string name_;
  int64_t size_ = 0;
};

// Whether `name` is a plain file name, or "../" and a plain file name: no other folder, no "." or
// "..", no control character, at most 255 bytes.
bool is_plain_file_name(std::string_view name);

// A file that appears under its name only when it is complete: written in its folder, synced and
// renamed by commit(). Without commit() nothing remains of it and an older file stays as it is.
// A device, a FIFO and what stdout or stderr is redirected to are written in place.
// Everything throws UsageError, which names the file, the bytes written and the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes);
  void commit();

 private:
  [[noreturn]] void fail(const char* action) const;  // with errno's words

  std::filesystem::path path_;     // its final path
  std::filesystem::path partial_;  // where it is written; empty when written in place
  Descriptor descriptor_;
  int64_t written_ = 0;
};

// An AtomicFile of one piece.
void write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace plumb::harness
