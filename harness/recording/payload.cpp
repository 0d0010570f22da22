#include "harness/recording/payload.h"

#include "harness/io/sha256.h"
#include "kernels/core/error.h"

namespace plumb::harness {
namespace {

constexpr int64_t kRemembered = int64_t{64} << 10;  // bytes of a tensor; smaller ones cost nothing

}  // namespace

Payload::Payload(SafetensorsFile file) : file_(std::move(file)) {}

// Null for a small file, and where the system maps no more.
const MappedFile* Payload::map() const {
  std::call_once(once_, [&] {
    if (!mapped()) return;
    known_ = std::make_unique<KnownHashes>(file_.file());
    try {
      map_ = std::make_shared<const MappedFile>(file_.file());
    } catch (const BadInput&) {
      throw;
    } catch (const Error&) {  // copies are as good
    }
  });
  return map_.get();
}

Tensor Payload::read(const std::string& name) const {
  const auto entry = file_.entries().find(name);
  if (entry == file_.entries().end() || !map()) return file_.read(name);
  const SafetensorsEntry& at = entry->second;
  const int64_t position = file_.position(at);
  if (position % size_of(at.dtype) != 0) return file_.read(name);
  map_->check();
  return mapped_tensor(map_, position, nullptr, at.dtype, at.shape);
}

bool Payload::remembers(const Tensor& tensor) const {
  return map() && tensor.bytes() >= kRemembered;
}

std::string Payload::sha256(const std::string& name, const Tensor& tensor,
                            const std::string& expected) const {
  if (remembers(tensor) && known_->find(name) == expected) return expected;
  return fresh_sha256(name, tensor);
}

std::string Payload::fresh_sha256(const std::string& name, const Tensor& tensor) const {
  std::string found = sha256_hex(tensor.raw(), tensor.bytes());
  hashed_ += tensor.bytes();
  if (map_) map_->check();  // what was missing read as zeros
  if (remembers(tensor) && known_->find(name) != found) known_->add(name, found);
  return found;
}

}  // namespace plumb::harness
