#include "blocks/weights.h"

#include "kernels/error.h"

namespace plumb {

Weights::Weights(std::shared_ptr<const Map> tensors, std::string where)
    : shared_(std::make_shared<Shared>(Shared{std::move(tensors), std::move(where), {}})) {}

Weights Weights::operator/(const std::string& name) const {
  Weights out = *this;
  out.prefix_ += name + ".";
  return out;
}

Tensor Weights::operator[](const std::string& name) const {
  Tensor t = find(name);
  if (!t.defined()) {
    throw BadInput(text(shared_->where, ": weight \"", prefix_ + name, "\" is missing"));
  }
  return t;
}

Tensor Weights::find(const std::string& name) const {
  const auto found = shared_->tensors->find(prefix_ + name);
  if (found == shared_->tensors->end()) return {};
  shared_->used.insert(found->first);
  return found->second;
}

bool Weights::has(const std::string& name) const {
  return shared_->tensors->count(prefix_ + name) > 0;
}

void Weights::finish() const {
  std::string names;
  for (const auto& [name, tensor] : *shared_->tensors) {
    if (!shared_->used.count(name)) names += (names.empty() ? "" : ", ") + name;
  }
  if (!names.empty()) throw BadInput(text(shared_->where, ": nobody used the weight(s) ", names));
}

}  // namespace plumb
