#include "harness/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

// A signal handler can read global variables only, and must not take a lock.
struct Slot {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<bool> cut{false};
};
constexpr size_t kMostFiles = 1024;
std::array<Slot, kMostFiles> slots;
std::atomic<uintptr_t> page_bytes{4096};
struct sigaction before {};

// What is behind the missing page is missing too (or unreadable): zeros from there on. The thread
// repeats its instruction.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Slot& slot : slots) {
    const uintptr_t begin = slot.begin, end = slot.end;
    if (address < begin || address >= end) continue;
    slot.cut = true;
    const uintptr_t page = address / page_bytes * page_bytes;
    void* const zeros = ::mmap(reinterpret_cast<void*>(page), end - page, PROT_READ,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    errno = error;
    if (zeros != MAP_FAILED) return;
  }
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    return before.sa_handler(signal);
  std::signal(signal, SIG_DFL);  // as without this handler, when the instruction is repeated
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGBUS, &action, &before);
  });
}

size_t take_slot(uintptr_t begin, uintptr_t end) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].end != 0) continue;
    slots[i].cut = false;
    slots[i].begin = begin;
    slots[i].end = end;
    return i;
  }
  throw Error(text("[map] more than ", kMostFiles, " files at once"));
}

class MappedStorage final : public Storage {
 public:
  MappedStorage(std::shared_ptr<const MappedFile> file, void* data, int64_t bytes,
                const void* owner)
      : Storage(data, bytes, owner), file_(std::move(file)) {}

 private:
  std::shared_ptr<const MappedFile> file_;
};

}  // namespace

MappedFile::MappedFile(const File& file)
    : name_(file.name()),
      descriptor_(::fcntl(file.descriptor(), F_DUPFD_CLOEXEC, 0)),
      bytes_(static_cast<size_t>(file.size())) {
  const auto fail = [&] { throw Error(text(name_, ": cannot be mapped: ", std::strerror(errno))); };
  if (descriptor_.number() < 0) fail();
  before_ = state();
  if (before_.size != file.size()) {
    throw BadInput(
        text(name_, ": had ", file.size(), " bytes, now ", before_.size, "; it is being written"));
  }
  if (bytes_ == 0) return;
  install_handler();
  void* const data =
      ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, descriptor_.number(), 0);
  if (data == MAP_FAILED) fail();
  data_ = static_cast<char*>(data);
  const auto begin = reinterpret_cast<uintptr_t>(data);
  slot_ = take_slot(begin, begin + (bytes_ + page_bytes - 1) / page_bytes * page_bytes);
}

MappedFile::~MappedFile() {
  if (!data_) return;
  slots[slot_].end = 0;  // first: the addresses may soon be reused
  ::munmap(data_, bytes_);
}

MappedFile::State MappedFile::state() const {
  struct stat status {};
  if (::fstat(descriptor_.number(), &status) != 0) {
    throw Error(text(name_, ": cannot be read: ", std::strerror(errno)));
  }
  return {status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

void MappedFile::check() const {
  const State now = state();
  const bool cut = data_ && slots[slot_].cut;
  if (!cut && now == before_) return;
  throw BadInput(text(name_, ": had ", before_.size, " bytes, now ", now.size,
                      cut ? "; what was needed is missing or unreadable" : "",
                      ": it was changed while it was in use; start again when it is complete"));
}

Tensor mapped_tensor(std::shared_ptr<const MappedFile> file, int64_t position, const void* owner,
                     DType dtype, const Shape& shape) {
  const char* data = file->data() + position;
  const int64_t bytes = shape.numel() * size_of(dtype);
  auto storage = std::make_shared<MappedStorage>(std::move(file), const_cast<char*>(data), bytes,
                                                 owner);  // NOLINT: read-only by contract
  return Tensor(std::move(storage), dtype, shape);
}

}  // namespace plumb::harness
