// Weights: a prefix view of named tensors, so that the code path is the checkpoint key:
// w / "self_attn" / "q_proj" reads "self_attn.q_proj.weight".
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "kernels/core/tensor.h"

namespace plumb::blocks {

struct QuantisedScheme;

class Weights {
 public:
  using Map = std::map<std::string, Tensor>;

  // `where` names the source in errors.
  Weights(std::shared_ptr<const Map> tensors, std::string where);

  Weights operator/(const std::string& name) const;
  // The tensor prefix + name, marked as used; BadInput when it is missing.
  Tensor operator[](const std::string& name) const;
  // The same; BadInput when its shape is not the one that the configuration implies.
  Tensor shaped(const std::string& name, const Shape& shape) const;
  // The same of a tensor that stays in the dtype it is stored in, which is one of these: codes, and
  // what belongs to them.
  Tensor stored(const std::string& name, const Shape& shape,
                const std::vector<DType>& dtypes) const {
    return as_stored(name, shape, dtypes, false);
  }
  // The same, or an undefined tensor when it is missing.
  Tensor stored_or_none(const std::string& name, const Shape& shape,
                        const std::vector<DType>& dtypes) const {
    return as_stored(name, shape, dtypes, true);
  }
  // The same, or an undefined tensor when it is missing.
  Tensor find(const std::string& name) const;
  bool has(const std::string& name) const;

  // All of them by their whole names, none of which counts as used.
  const Map& all() const { return *shared_->tensors; }

  // Throws BadInput listing weights that were not used.
  void finish() const;

  // Weights that exist as shapes only: shaped() gives a tensor without memory for every name, and
  // the shapes asked for can be read. It tells what a model needs before there is any of it.
  static Weights shapes_only(DType dtype, std::string where);
  const std::map<std::string, Shape>& asked() const { return shared_->asked; }
  // Of those, what stays in its dtype, and may be missing.
  struct Stored {
    std::vector<DType> dtypes;
    bool optional = false;
  };
  const std::map<std::string, Stored>& asked_as_stored() const { return shared_->as_stored; }

  // How linear layers are quantised, from now on: all views of these weights know it.
  void quantise(std::shared_ptr<const QuantisedScheme> scheme) const {
    shared_->scheme = std::move(scheme);
  }
  // Null where the module of this prefix has floats.
  const QuantisedScheme* scheme() const;

  // `alias` (a whole name) is another name of `name`: a file may hold it, too, with equal bytes.
  void tie(const std::string& alias, const std::string& name) const { shared_->ties[alias] = name; }
  const std::map<std::string, std::string>& ties() const { return shared_->ties; }

 private:
  struct Shared {
    std::shared_ptr<const Map> tensors;  // null: shapes only
    std::string where;
    std::set<std::string> used;
    DType dtype = DType::f32;
    std::map<std::string, Shape> asked;
    std::map<std::string, std::string> ties;
    std::map<std::string, Stored> as_stored = {};
    std::shared_ptr<const QuantisedScheme> scheme = nullptr;
  };
  Tensor as_stored(const std::string& name, const Shape& shape, const std::vector<DType>& dtypes,
                   bool optional) const;
  explicit Weights(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;
  std::string prefix_;
};

}  // namespace plumb::blocks
