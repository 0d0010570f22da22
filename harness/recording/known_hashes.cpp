#include "harness/recording/known_hashes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <fstream>

#include "harness/io/sha256.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

namespace fs = std::filesystem;

constexpr size_t kDigits = 64;
constexpr std::time_t kSettled = 2;  // seconds

std::string state_of(int descriptor) {
  struct stat s {};
  if (::fstat(descriptor, &s) != 0) return {};
  return text("plumbline sha256 1: device ", s.st_dev, " inode ", s.st_ino, " size ", s.st_size,
              " modified ", s.st_mtim.tv_sec, '.', s.st_mtim.tv_nsec, " changed ", s.st_ctim.tv_sec,
              '.', s.st_ctim.tv_nsec);
}

bool is_settled(int descriptor) {
  struct stat s {};
  const std::time_t now = std::time(nullptr);
  return ::fstat(descriptor, &s) == 0 && now - s.st_mtim.tv_sec > kSettled &&
         now - s.st_ctim.tv_sec > kSettled;
}

fs::path cache_of(const File& file) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const bool has_cache = cache && *cache, has_home = home && *home;
  if (!has_cache && !has_home) return {};
  std::error_code error;
  const std::string name = fs::weakly_canonical(file.name(), error).string();
  if (error) return {};
  const fs::path base = has_cache ? fs::path(cache) : fs::path(home) / ".cache";
  return base / "plumbline" / "sha256" /
         (sha256_hex(name.data(), static_cast<int64_t>(name.size())) + ".txt");
}

// Whoever else may write there could have a changed file believed.
bool is_the_users_alone(const fs::path& folder) {
  struct stat s {};
  return ::stat(folder.c_str(), &s) == 0 && s.st_uid == ::geteuid() &&
         (s.st_mode & (S_IRWXG | S_IRWXO)) == 0;
}

}  // namespace

KnownHashes::KnownHashes(const File& file)
    : descriptor_(file.descriptor()),
      path_(cache_of(file)),
      state_(state_of(descriptor_)),
      settled_(is_settled(descriptor_)) {
  if (!path_.empty() && !state_.empty()) load();
}

// Lines of a digest, a space and a name; what is anything else is left out.
void KnownHashes::load() {
  if (!is_the_users_alone(path_.parent_path())) return;
  std::ifstream in(path_);
  std::string line;
  begun_ = std::getline(in, line) && line == state_;
  while (begun_ && std::getline(in, line)) {
    if (in.eof() || line.size() < kDigits + 2 || line[kDigits] != ' ') continue;  // cut short
    known_[line.substr(kDigits + 1)] = line.substr(0, kDigits);
  }
}

std::optional<std::string> KnownHashes::find(const std::string& tensor) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(tensor);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

void KnownHashes::add(const std::string& tensor, const std::string& sha256) {
  const std::lock_guard lock(mutex_);
  known_[tensor] = sha256;
  if (!path_.empty() && settled_ && state_of(descriptor_) == state_) {
    keep(text(sha256, ' ', tensor, '\n'));
  }
}

// One write at the end, which other processes may do as well.
void KnownHashes::keep(const std::string& line) {
  if (!begun_) {
    std::error_code error;
    fs::create_directories(path_.parent_path(), error);
    fs::permissions(path_.parent_path(), fs::perms::owner_all, error);
    if (!is_the_users_alone(path_.parent_path())) return;
    try {
      write_file(path_, state_ + '\n');
    } catch (const Error&) {
      return;
    }
    begun_ = true;
  }
  const Descriptor to(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (to.number() < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(to.number(), line.data(), line.size());
}

}  // namespace plumb::harness
