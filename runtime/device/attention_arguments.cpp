#include "runtime/device/attention_arguments.h"

#include <string>

#include <fmt/format.h>

#include "common/error.h"

namespace mtl {

namespace {

void require(bool condition, const std::string& what) {
  if (condition) return;
  Diagnostic diagnostic;
  diagnostic.code = "device.attention";
  diagnostic.what = what;
  diagnostic.help = "this is a defect of mtl; please report it with the command line";
  throw Error(Exit::run_failed, diagnostic);
}

// Of the heads' results, and what is summed up of them.
void check(const AttentionShape& s, const Tensor& out, const Tensor& lse) {
  require(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.head_dim > 0 &&
              s.value_dim >= 0 && s.value_dim <= s.head_dim,
          fmt::format("attention with {} heads over {} KV heads of {} and {}", s.heads, s.kv_heads,
                      s.head_dim, s.values()));
  const int64_t rows = s.batch * s.seq;
  require(out.rows() == rows && out.cols() == s.heads * s.values(),
          fmt::format("attention over {} rows with out [{}, {}]", rows, out.rows(), out.cols()));
  require(lse.dtype == DType::f32 && lse.numel() == s.batch * s.heads * s.seq,
          "attention needs lse as f32 [batch, heads, seq]");
  require(is_compute_type(out.dtype), "attention of unsupported element types");
  require(!s.sinks || (s.sinks.dtype == out.dtype && s.sinks.numel() == s.heads),
          "attention needs sinks as [heads] of the type of qkv");
}

void check(const AttentionShape& s, const Tensor& qkv, const Tensor& out, const Tensor& lse) {
  check(s, out, lse);
  const int64_t rows = s.batch * s.seq;
  require(qkv.rows() == rows && qkv.cols() == s.qkv_width(),
          fmt::format("attention over {} rows with qkv [{}, {}]", rows, qkv.rows(), qkv.cols()));
  require(qkv.dtype == out.dtype, "attention of unsupported element types");
  require(s.first_query >= 0 && s.first_query <= s.seq, "attention beyond the sequence");
  require(s.dropout.probability >= 0 && s.dropout.probability < 1,
          fmt::format("dropout with probability {}", s.dropout.probability));
  require(!s.dropout || s.dropout.pass, "dropout of no pass");
  require(!s.alibi || (s.first_head >= 0 && s.first_head + s.heads <= s.total_heads),
          fmt::format("ALiBi for heads {} to {} of {}", s.first_head, s.first_head + s.heads,
                      s.total_heads));
  require(s.cap >= 0 && !(s.cap > 0 && s.alibi), fmt::format("attention with a cap of {}", s.cap));
  require(s.window >= 0, fmt::format("attention with a window of {} keys", s.window));
  require(!s.first_key || (s.first_key.dtype == DType::i32 && s.first_key.numel() == rows),
          "attention needs first_key as i32 [batch * seq]");
}

}  // namespace

void check_attention(const Attention& args) {
  check(args.shape, args.qkv, args.out, args.lse);
}

void check_attention(const AttentionBackward& args) {
  check(args.shape, args.qkv, args.out, args.lse);
  require(args.dout.dtype == args.qkv.dtype && args.dout.numel() == args.out.numel() &&
              args.dqkv.dtype == args.qkv.dtype && args.dqkv.numel() == args.qkv.numel(),
          "attention backward: dout and dqkv must look like out and qkv");
}

void check_attention(const AttentionSinksBackward& args) {
  check(args.shape, args.out, args.lse);
  require(bool(args.shape.sinks) && args.dout.dtype == args.out.dtype &&
              args.dout.numel() == args.out.numel() && args.dsinks.dtype == DType::f32 &&
              args.dsinks.numel() == args.shape.heads,
          "attention's sinks backward: dout must look like out, and dsinks be f32 [heads]");
}

}  // namespace mtl
