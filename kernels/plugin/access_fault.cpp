#include "kernels/plugin/access_fault.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csetjmp>
#include <csignal>
#include <cstring>

#include "kernels/core/source_line.h"

namespace plumb {
namespace {

constexpr std::array<int, 2> kSignals = {SIGSEGV, SIGBUS};
constexpr int kFrames = 64;
constexpr int kNoAddress = 0x80;  // si_code of a misaligned access on x86-64: SI_KERNEL

// What a handler finds, which can reach nothing else.
struct Watch {
  const std::function<bool(const void*)>* watched = nullptr;
  pthread_t caller{};
  sigjmp_buf back{};
  std::atomic<bool> taken{false};
  const void* address = nullptr;
  const void* code = nullptr;
  AccessFault::Verb verb = AccessFault::Verb::touched;
  bool in_other_thread = false;
  std::array<void*, kFrames> frames{};
  int frame_count = 0;
};
Watch* watch = nullptr;
std::array<struct sigaction, kSignals.size()> handlers_before{};

void read_machine(const void* context, Watch& to) {
#if defined(__x86_64__) && defined(__linux__)
  const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
  to.code = reinterpret_cast<const void*>(machine.gregs[REG_RIP]);
  to.verb = machine.gregs[REG_ERR] & 2 ? AccessFault::Verb::wrote : AccessFault::Verb::read;
#elif defined(__aarch64__) && defined(__linux__)
  to.code = reinterpret_cast<const void*>(static_cast<const ucontext_t*>(context)->uc_mcontext.pc);
#else
  static_cast<void>(context);
  static_cast<void>(to);
#endif
}

bool is_misaligned(int signal, const siginfo_t& info) {
  return signal == SIGBUS ? info.si_code == BUS_ADRALN
                          : info.si_code == kNoAddress && !info.si_addr;
}

// As without this handler: a mapped file that was cut is another one's business.
void hand_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction& before = handlers_before[signal == kSignals[0] ? 0 : 1];
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    return before.sa_handler(signal);
  }
  std::signal(signal, SIG_DFL);
  raise(signal);
}

void on_signal(int signal, siginfo_t* info, void* context) {
  Watch* const w = watch;
  if (!w) return hand_on(signal, info, context);
  const bool own = pthread_equal(pthread_self(), w->caller);
  if (own && w->in_other_thread) siglongjmp(w->back, 1);  // called by the other thread
  const bool misaligned = is_misaligned(signal, *info);
  const bool sent = info->si_code <= 0;
  if (sent || (!misaligned && !(*w->watched)(info->si_addr))) {
    return hand_on(signal, info, context);
  }
  if (w->taken.exchange(true)) {  // another thread was first
    for (;;) pause();
  }
  w->address = misaligned ? nullptr : info->si_addr;
  read_machine(context, *w);
  w->frame_count = backtrace(w->frames.data(), kFrames);
  if (own) siglongjmp(w->back, 1);
  w->in_other_thread = true;
  pthread_kill(w->caller, signal);
  for (;;) pause();
}

bool is_in(const void* code, const std::string& file) {
  Dl_info image{};
  return dladdr(code, &image) && image.dli_fname && file == image.dli_fname;
}

// Of the frames the innermost one of the file: the line that called memcpy, not memcpy.
std::string line_of(const Watch& w, const std::string& file) {
  const char* code = static_cast<const char*>(w.code);
  if (code && is_in(code, file)) return source_line(code + 1);
  const auto* end = w.frames.data() + w.frame_count;
  const auto* found = std::find_if(w.frames.data(), end, [&](void* p) { return is_in(p, file); });
  if (found != end) return source_line(*found);
  return code ? source_line(code + 1) : "an unknown place";
}

class Handlers {
 public:
  explicit Handlers(Watch& w) {
    watch = &w;
    struct sigaction action {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    for (size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], &action, &handlers_before[i]);
    }
  }
  ~Handlers() {
    for (size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], &handlers_before[i], nullptr);
    }
    watch = nullptr;
  }
  Handlers(const Handlers&) = delete;
  Handlers& operator=(const Handlers&) = delete;
};

}  // namespace

std::optional<AccessFault> run_watched(const std::string& file,
                                       const std::function<bool(const void*)>& watched,
                                       const std::function<void()>& work) {
  // The first call loads what unwinds, which a handler must not.
  static const int warmed = [] {
    void* frame = nullptr;
    return backtrace(&frame, 1);
  }();
  static_cast<void>(warmed);
  Watch w;
  w.watched = &watched;
  w.caller = pthread_self();
  {
    const Handlers handlers(w);
    if (sigsetjmp(w.back, 1) == 0) {
      work();
      return std::nullopt;
    }
  }
  return AccessFault{w.address, w.verb, line_of(w, file), w.in_other_thread};
}

}  // namespace plumb
