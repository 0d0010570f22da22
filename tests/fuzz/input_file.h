// The bytes of a fuzzer as a file in memory, for readers that take paths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace plumb::testing {

// A folder of this process in memory (/dev/shm), gone at its end.
class InputFolder {
 public:
  InputFolder() {
    std::string name = "/dev/shm/plumbline-fuzz-XXXXXX";
    if (!mkdtemp(name.data())) std::abort();
    path_ = name;
  }
  ~InputFolder() {
    std::error_code no;
    std::filesystem::remove_all(path_, no);
  }
  InputFolder(const InputFolder&) = delete;
  InputFolder& operator=(const InputFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const char* name, const uint8_t* data, size_t size) const {
    std::ofstream(path_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace plumb::testing
