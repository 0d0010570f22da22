// Weights: a prefix view of named tensors, so that the code path is the checkpoint key:
// w / "self_attn" / "q_proj" reads "self_attn.q_proj.weight".
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "kernels/tensor.h"

namespace plumb {

class Weights {
 public:
  using Map = std::map<std::string, Tensor>;

  // `where` names the source in errors.
  Weights(std::shared_ptr<const Map> tensors, std::string where);

  Weights operator/(const std::string& name) const;
  // The tensor prefix + name, marked as used; BadInput when it is missing.
  Tensor operator[](const std::string& name) const;
  // The same, or an undefined tensor when it is missing.
  Tensor find(const std::string& name) const;
  bool has(const std::string& name) const;

  // Throws BadInput listing weights that nobody used.
  void finish() const;

 private:
  struct Shared {
    std::shared_ptr<const Map> tensors;
    std::string where;
    std::set<std::string> used;
  };
  std::shared_ptr<Shared> shared_;
  std::string prefix_;
};

}  // namespace plumb
