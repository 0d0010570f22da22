// Gradients that are no formulas: of norms, softmax, embeddings, the loss.
#include "kernels/portable/portable_ops.h"

namespace plumb::portable {

void PortableOps::do_softmax_backward(const Tensor& d_x, const Tensor& y, const Tensor& d_out) {
  if (y.numel() == 0) return;
  const char* op = "softmax_backward";
  SoftmaxArguments p{};
  p.to = address(d_x);
  p.x = address(y);
  p.d_out = address(d_out);
  p.out_rows = rows_of(op, d_x);
  p.x_rows = rows_of(op, y);
  p.d_rows = rows_of(op, d_out);
  p.columns = extent_of(op, y.dim(-1));
  launch(op, op, storage_of(op, y.dtype()), row_count(y), p);
}

void PortableOps::norm_backward(const char* op, NormBackwardArguments p, const Tensor& d_x,
                                const Tensor& d_weight, const Tensor& d_bias, const Tensor& x,
                                const Tensor& weight, const Tensor& d_out) {
  if (weight.numel() == 0) return;
  const Storage storage = storage_of(op, x.dtype());
  Arena::Scope scope(arena());
  const Tensor stats = arena().take(DType::f32, {row_count(x), 2});
  p.to = address(d_x);
  p.x = address(x);
  p.weight = address(weight);
  p.d_out = address(d_out);
  p.d_weight = address(d_weight);
  p.d_bias = address(d_bias);
  p.stats = address(stats);
  p.to_rows = rows_of(op, d_x);
  p.x_rows = rows_of(op, x);
  p.d_rows = rows_of(op, d_out);
  p.rows = extent_of(op, row_count(x));
  p.columns = extent_of(op, x.dim(-1));
  launch(op, "norm_backward", storage, p.rows, p);
  if (p.d_weight || p.d_bias) {
    launch(op, "weight_backward", storage, groups_for("weight_backward", p.columns), p);
  }
}

void PortableOps::do_rms_norm_backward(const Tensor& d_x, const Tensor& d_weight, const Tensor& x,
                                       const Tensor& weight, const Tensor& d_out,
                                       const RmsNormParams& params) {
  NormBackwardArguments p{};
  p.round_before = params.rounding == WeightRounding::before;
  p.eps = static_cast<float>(params.eps);
  p.weight_offset = static_cast<float>(params.weight_offset);
  norm_backward("rms_norm_backward", p, d_x, d_weight, {}, x, weight, d_out);
}

void PortableOps::do_layer_norm_backward(const Tensor& d_x, const Tensor& d_weight,
                                         const Tensor& d_bias, const Tensor& x,
                                         const Tensor& weight, const Tensor& d_out, double eps) {
  NormBackwardArguments p{};
  p.centred = 1;
  p.eps = static_cast<float>(eps);
  norm_backward("layer_norm_backward", p, d_x, d_weight, d_bias, x, weight, d_out);
}

void PortableOps::do_embedding_backward(const Tensor& d_weight, const Tensor& d_out,
                                        const Tensor& ids, double scale, int64_t padding) {
  if (d_weight.numel() == 0) return;
  const char* op = "embedding_backward";
  EmbeddingArguments p{};
  p.to = address(d_out);
  p.ids = address(ids);
  p.weight = address(d_weight);
  p.error = id_error_;
  p.out_rows = rows_of(op, d_out);
  p.id_rows = rows_of(op, ids);
  p.weight_row = d_weight.stride(0);
  p.vocabulary = d_weight.dim(0);
  p.padding = padding;
  p.columns = extent_of(op, d_weight.dim(1));
  p.ids_width = extent_of(op, std::max<int64_t>(ids.dim(-1), 1));
  p.id_dtype = *whole_number(ids.dtype());
  p.op = static_cast<i32>(OpId::embedding_backward);
  p.count = extent_of(op, ids.numel());
  p.scale = static_cast<float>(scale);
  launch(op, op, storage_of(op, d_weight.dtype()), d_weight.dim(0), p);
}

void PortableOps::cross_entropy(OpId op, const Tensor& loss, const Tensor& d_logits,
                                const Tensor& logits, const Tensor& labels, int64_t ignored) {
  const char* name = row_of(op).name;
  CrossEntropyArguments p{};
  p.loss = address(loss);
  p.d_logits = address(d_logits);
  p.logits = address(logits);
  p.labels = address(labels);
  p.error = id_error_;
  p.logits_rows = rows_of(name, logits);
  p.d_rows = d_logits.defined() ? rows_of(name, d_logits) : p.logits_rows;
  p.ignored = ignored;
  p.rows = extent_of(name, logits.dim(0));
  p.columns = extent_of(name, logits.dim(1));
  p.loss_storage = storage_number(name, loss.dtype());
  p.op = static_cast<i32>(op);
  launch(name, "cross_entropy", storage_of(name, logits.dtype()), d_logits.defined() ? p.rows : 1,
         p);
}

void PortableOps::do_cross_entropy(const Tensor& loss, const Tensor& logits, const Tensor& labels,
                                   int64_t ignored) {
  cross_entropy(OpId::cross_entropy, loss, {}, logits, labels, ignored);
}

void PortableOps::do_cross_entropy_backward(const Tensor& d_logits, const Tensor& logits,
                                            const Tensor& labels, const Tensor& d_loss,
                                            int64_t ignored) {
  if (logits.numel() == 0) return;
  cross_entropy(OpId::cross_entropy_backward, d_loss, d_logits, logits, labels, ignored);
}

}  // namespace plumb::portable
