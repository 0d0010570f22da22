#include "harness/run/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "harness/io/json_line.h"
#include "harness/io/sha256.h"
#include "harness/replay/result_json.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "lengths are written as they are");

constexpr std::string_view kMagic = "plumbline journal 2\n";
constexpr int64_t kDigest = 64;
constexpr int64_t kHead = sizeof(uint64_t) + kDigest;

std::string digest_of(std::string_view payload) {
  return sha256_hex(payload.data(), static_cast<int64_t>(payload.size()));
}

std::string record(std::string_view payload) {
  const uint64_t length = payload.size();
  std::string out(sizeof length, '\0');
  std::memcpy(out.data(), &length, sizeof length);
  return text(out, digest_of(payload), payload);
}

// `bytes` bytes from `offset`, or what there is of them.
std::string read_at(int descriptor, int64_t offset, int64_t bytes) {
  std::string out(static_cast<size_t>(bytes), '\0');
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::pread(descriptor, out.data() + done, out.size() - done,
                                offset + static_cast<int64_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  out.resize(done);
  return out;
}

// The payload of the record at `offset`; nothing where it is not whole.
std::optional<std::string> payload_at(int descriptor, int64_t offset, int64_t size) {
  const std::string head = read_at(descriptor, offset, std::min(kHead, size - offset));
  if (static_cast<int64_t>(head.size()) < kHead) return std::nullopt;
  uint64_t length = 0;
  std::memcpy(&length, head.data(), sizeof length);
  if (length > static_cast<uint64_t>(size - offset - kHead)) return std::nullopt;
  std::string payload = read_at(descriptor, offset + kHead, static_cast<int64_t>(length));
  if (payload.size() != length || digest_of(payload) != head.substr(sizeof length)) {
    return std::nullopt;
  }
  return payload;
}

// The facts as they are written, in which invalid UTF-8 is U+FFFD.
std::string header_of(const Journal::Facts& facts, const std::string& started) {
  Json of = Json::object();
  for (const auto& [name, value] : facts) of[name] = value;
  const Json header{{"started", started}, {"facts", std::move(of)}};
  return json_line(header);
}

// A fact as it is shown: of a long one, as of a hash, the beginning.
std::string shown(const Json& facts, const std::string& name) {
  constexpr size_t kMost = 48, kKept = 14;
  const std::string whole = facts.contains(name) ? facts.at(name).dump() : "not there";
  return whole.size() > kMost ? whole.substr(0, kKept) + "..." : whole;
}

// "device was "cpu", is "oracle"; ... and 2 more": the facts that are not the same on both sides.
std::string differences(const Json& before, const Json& now) {
  constexpr int kNamed = 4;
  Json names = before;
  names.update(now);
  std::string out;
  int differ = 0;
  for (const auto& [name, value] : names.items()) {
    if (before.contains(name) && now.contains(name) && before.at(name) == now.at(name)) continue;
    if (++differ > kNamed) continue;
    out += text(out.empty() ? "" : "; ", name, " was ", shown(before, name), ", is ",
                shown(now, name));
  }
  return differ > kNamed ? text(out, "; and ", differ - kNamed, " more") : out;
}

}  // namespace

void Journal::fail(const char* action, int64_t at) const {
  throw UsageError(text("[--journal] ", path_.string(), ": cannot be ", action, " at byte ", at,
                        ": ", std::strerror(errno)));
}

Journal::Journal(const std::filesystem::path& path, const Facts& facts, const std::string& started)
    : path_(path),
      descriptor_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666)) {
  struct stat status {};
  require(descriptor_.number() >= 0, "--journal", path_.string(),
          ": cannot be opened: ", std::strerror(errno));
  require(::fstat(descriptor_.number(), &status) == 0 && S_ISREG(status.st_mode), "--journal",
          path_.string(), ": is not a regular file, which a journal has to be");
  require(::flock(descriptor_.number(), LOCK_EX | LOCK_NB) == 0, "--journal", path_.string(),
          ": another run is writing it");
  read(status.st_size, facts);
  dropped_ = status.st_size - end_;
  if (dropped_ > 0 && ::ftruncate(descriptor_.number(), end_) != 0) fail("cut", end_);
  if (end_ == 0) begin(facts, started);
}

void Journal::read(int64_t size, const Facts& facts) {
  const auto magic = static_cast<int64_t>(kMagic.size());
  const std::string first = read_at(descriptor_.number(), 0, std::min(size, magic));
  require(kMagic.starts_with(first), "--journal", path_.string(),
          ": is not a journal of this harness; name another file");
  const auto header = payload_at(descriptor_.number(), magic, std::max(size, magic));
  if (!header) return;
  check(*header, facts);
  end_ = magic + kHead + static_cast<int64_t>(header->size());
  while (const auto payload = payload_at(descriptor_.number(), end_, size)) {
    require<BadInput>(payload->size() > sizeof seconds_, "--journal", path_.string(),
                      ": holds no result at byte ", end_);
    std::memcpy(&seconds_, payload->data(), sizeof seconds_);
    results_.push_back(unpacked(std::string_view(*payload).substr(sizeof seconds_)).result);
    end_ += kHead + static_cast<int64_t>(payload->size());
  }
}

void Journal::check(std::string_view header, const Facts& facts) {
  const Json before = Json::parse(header), now = Json::parse(header_of(facts, ""));
  const std::string differ = differences(before.at("facts"), now.at("facts"));
  require(differ.empty(), "--journal", path_.string(), ": is of another run: ", differ,
          "; repeat that run's command, or remove the file to start over");
  started_ = before.at("started").get<std::string>();
}

void Journal::begin(const Facts& facts, const std::string& started) {
  write(text(kMagic, record(header_of(facts, started))));
  started_ = started;
  const auto parent = path_.parent_path();
  const Descriptor folder(
      ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.number() >= 0) ::fsync(folder.number());
}

void Journal::write(std::string_view bytes) {
  int64_t at = end_;
  const auto undo_and_fail = [&](const char* action) {
    const int code = errno;
    [[maybe_unused]] const int cut = ::ftruncate(descriptor_.number(), end_);  // else the next run
    errno = code;
    fail(action, at);
  };
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(descriptor_.number(), bytes.data(), bytes.size(), at);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) undo_and_fail("written");
    bytes.remove_prefix(static_cast<size_t>(done));
    at += done;
  }
  if (::fdatasync(descriptor_.number()) != 0) undo_and_fail("synced");
  end_ = at;
}

void Journal::append(const CheckpointResult& result, double seconds) {
  std::string payload(sizeof seconds, '\0');
  std::memcpy(payload.data(), &seconds, sizeof seconds);
  write(record(payload + packed({result, {}})));
}

}  // namespace plumb::harness
