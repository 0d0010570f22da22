#include "blocks/weights.h"

#include <algorithm>

#include "blocks/quantisation.h"
#include "kernels/core/error.h"

namespace plumb::blocks {

namespace {

// Bytes that must not be read.
std::shared_ptr<Storage> no_memory() {
  static const auto nothing = std::make_shared<Storage>(nullptr, INT64_MAX, nullptr);
  return nothing;
}

}  // namespace

Weights::Weights(std::shared_ptr<const Map> tensors, std::string where)
    : Weights(std::make_shared<Shared>(
          Shared{std::move(tensors), std::move(where), {}, DType::f32, {}, {}})) {}

Weights Weights::shapes_only(DType dtype, std::string where) {
  return Weights(std::make_shared<Shared>(Shared{nullptr, std::move(where), {}, dtype, {}, {}}));
}

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

Tensor Weights::shaped(const std::string& name, const Shape& shape) const {
  if (!shared_->tensors) {
    shared_->asked.emplace(prefix_ + name, shape);
    return Tensor(no_memory(), shared_->dtype, shape);
  }
  Tensor t = (*this)[name];
  if (!(t.shape() == shape)) {
    throw BadInput(text(shared_->where, ": weight \"", prefix_ + name, "\" has shape ", t.shape(),
                        ", the configuration implies ", shape));
  }
  return t;
}

Tensor Weights::as_stored(const std::string& name, const Shape& shape,
                          const std::vector<DType>& dtypes, bool optional) const {
  if (!shared_->tensors) {
    shared_->asked.emplace(prefix_ + name, shape);
    shared_->as_stored.emplace(prefix_ + name, Stored{dtypes, optional});
    return Tensor(no_memory(), dtypes[0], shape);
  }
  if (optional && !has(name)) return {};
  return shaped(name, shape);
}

const QuantisedScheme* Weights::scheme() const {
  const QuantisedScheme* scheme = shared_->scheme.get();
  const std::string module = prefix_.substr(0, prefix_.empty() ? 0 : prefix_.size() - 1);
  return scheme && scheme->converts(module) ? scheme : nullptr;
}

Tensor Weights::find(const std::string& name) const {
  if (!has(name)) return {};
  const auto found = shared_->tensors->find(prefix_ + name);
  shared_->used.insert(found->first);
  return found->second;
}

bool Weights::has(const std::string& name) const {
  return shared_->tensors && shared_->tensors->count(prefix_ + name) > 0;
}

void Weights::finish() const {
  std::string names;
  for (const auto& [name, tensor] : *shared_->tensors) {
    if (!shared_->used.count(name)) names += (names.empty() ? "" : ", ") + name;
  }
  if (!names.empty())
    throw BadInput(text(shared_->where, ": the block does not use the weight(s) ", names));
}

}  // namespace plumb::blocks
