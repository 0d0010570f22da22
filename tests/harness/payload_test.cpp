// Large files are mapped and hashed once; what has changed is hashed again, whatever a cache says.
#include "harness/recording/payload.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <thread>

#include "harness/io/sha256.h"
#include "tests/catch.h"
#include "tests/harness/error_text.h"
#include "tests/harness/temporary_folder.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLarge = Payload::kMapped + 4096;

// XDG_CACHE_HOME for the length of a test.
class CacheFolder {
 public:
  explicit CacheFolder(const fs::path& folder) { ::setenv("XDG_CACHE_HOME", folder.c_str(), 1); }
  ~CacheFolder() { ::unsetenv("XDG_CACHE_HOME"); }
};

Tensor filled(int64_t bytes, uint8_t value) {
  const Tensor out = host_tensor(DType::u8, {bytes});
  std::fill_n(out.data<uint8_t>(), bytes, value);
  return out;
}

std::string sha256_of(const Tensor& t) { return sha256_hex(t.raw(), t.bytes()); }

fs::path write_large(const fs::path& path) {
  write_safetensors(path, {{"large", filled(kLarge, 1)}, {"small", filled(10, 2)}});
  return path;
}

// Makes a file look as if it had been written long ago; the status change time stays.
void age(const fs::path& path, int64_t seconds) {
  struct stat s {};
  REQUIRE(::stat(path.c_str(), &s) == 0);
  const timespec times[] = {{s.st_mtim.tv_sec - seconds, 5}, {s.st_mtim.tv_sec - seconds, 5}};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

void wait_until_settled() { std::this_thread::sleep_for(std::chrono::milliseconds(3100)); }

// What reading the large tensor hashed, in bytes.
int64_t hashed_of(const fs::path& path, const std::string& expected) {
  const Payload payload{SafetensorsFile(File::open(path))};
  const Tensor large = payload.read("large");
  CHECK(payload.sha256("large", large, expected) == sha256_of(large));
  return payload.hashed();
}

fs::path only_file_in(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  REQUIRE(files.size() == 1);
  return files[0];
}

}  // namespace

TEST_CASE("a large file's tensors are in the mapped file, a small one's are copies") {
  const TemporaryFolder root;
  const CacheFolder cache(root / "cache");
  const Payload large{SafetensorsFile(File::open(write_large(root / "x")))};
  CHECK(large.mapped());
  CHECK(large.read("large").raw() == large.read("large").raw());
  CHECK(*large.read("small").data<uint8_t>() == 2);
  write_safetensors(root / "y", {{"small", filled(10, 3)}});
  const Payload small{SafetensorsFile(File::open(root / "y"))};
  CHECK_FALSE(small.mapped());
  CHECK(*small.read("small").data<uint8_t>() == 3);
}

TEST_CASE("a large tensor is hashed once as long as its file does not change") {
  const TemporaryFolder root;
  const CacheFolder cache(root / "cache");
  const fs::path path = write_large(root / "x");
  const std::string first = sha256_of(filled(kLarge, 1)), second = sha256_of(filled(kLarge, 7));
  CHECK(hashed_of(path, first) == kLarge);
  CHECK_FALSE(fs::exists(root / "cache"));  // as young as that, a change could go unseen
  wait_until_settled();
  CHECK(hashed_of(path, first) == kLarge);
  CHECK(hashed_of(path, first) == 0);
  CHECK(hashed_of(path, second) == kLarge);  // what else is expected is looked at

  // The same name, size and time of modification, but other bytes.
  struct stat before {};
  REQUIRE(::stat(path.c_str(), &before) == 0);
  {
    const Descriptor file(::open(path.c_str(), O_WRONLY));
    const SafetensorsFile layout(File::open(path));
    const std::string bytes(static_cast<size_t>(kLarge), '\7');
    REQUIRE(::pwrite(file.number(), bytes.data(), bytes.size(),
                     layout.position(layout.entries().at("large"))) == kLarge);
  }
  const timespec times[] = {before.st_atim, before.st_mtim};
  REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
  CHECK(hashed_of(path, first) == kLarge);
}

TEST_CASE("a cache of another file's state acquits nothing") {
  const TemporaryFolder root;
  const CacheFolder cache(root / "cache");
  const fs::path path = write_large(root / "x");
  const std::string hash = sha256_of(filled(kLarge, 1));
  wait_until_settled();
  hashed_of(path, hash);
  const fs::path kept = only_file_in(root / "cache");
  const std::string good = read_bytes(kept);
  CHECK(hashed_of(path, hash) == 0);
  for (const char* field : {"inode ", "size ", "modified ", "changed "}) {
    INFO(field);
    std::string other = good;
    char& digit = other[other.find(field) + std::string_view(field).size()];
    digit = digit == '1' ? '2' : '1';
    write_bytes(kept, other);
    CHECK(hashed_of(path, hash) == kLarge);
  }
  write_bytes(kept, good.substr(0, good.size() - 1));  // its last line is cut short
  CHECK(hashed_of(path, hash) == kLarge);
  write_bytes(kept, "nonsense");
  CHECK(hashed_of(path, hash) == kLarge);
}

TEST_CASE("a cache that others may read or write is not believed, and not written") {
  const TemporaryFolder root;
  const CacheFolder cache(root / "cache");
  const fs::path path = write_large(root / "x");
  const std::string hash = sha256_of(filled(kLarge, 1));
  wait_until_settled();
  hashed_of(path, hash);
  const fs::path folder = only_file_in(root / "cache").parent_path();
  CHECK(fs::status(folder).permissions() == fs::perms::owner_all);
  for (const fs::perms others : {fs::perms::group_write, fs::perms::others_read}) {
    fs::permissions(folder, others, fs::perm_options::add);
    CHECK(hashed_of(path, hash) == kLarge);
    CHECK(fs::status(folder).permissions() == fs::perms::owner_all);
    CHECK(hashed_of(path, hash) == 0);
  }
}

TEST_CASE("a mapped file that changes in use is bad input") {
  const TemporaryFolder root;
  const CacheFolder cache(root / "cache");
  const fs::path path = write_large(root / "x");
  const Payload payload{SafetensorsFile(File::open(path))};
  payload.read("large");
  age(path, 100);
  CHECK(contains(error_text([&] { payload.read("large"); }), "it was changed while it was in use"));
}

}  // namespace plumb::harness
