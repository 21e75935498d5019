// The Python face of the kernels, and of the index that drafts: which classes and functions Python sees, and what they
// are called there.
//
// A name is defined in the header of its noun. These check numpy's arrays (array.h) once: weights and activations when
// they are made, the tokens, positions and block tables of a pass when it is prepared, so that an operation only
// compares sizes. Kernels trust their arguments, and a wrong shape must end as a ValueError with a sentence, never as a
// crash.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "attention/kv_cache.h"
#include "pass/arguments.h"
#include "pass/backend.h"
#include "pass/operations.h"
#include "pass/prepared_pass.h"
#include "pass/program.h"
#include "pool/trace.h"
#include "recurrence/state_cache.h"
#include "sampling/logits.h"
#include "text/bpe_texts.h"
#include "text/suffix_drafts.h"
#include "weights/adapters.h"
#include "weights/packed.h"
#include "weights/packing.h"

namespace {

// Call, beginning, end and the thread's own time of each.
using Spans = std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>>;

Spans spans_of(const std::vector<inflight::TraceSpan>& spans) {
  Spans all;
  for (const auto& [call, begin, end, own] : spans) all.emplace_back(call, begin, end, own);
  return all;
}

// How each piece of a matrix is held.
std::vector<std::string> holds_of(const inflight::Linear& linear) {
  std::vector<std::string> all;
  for (const auto& piece : linear.pieces) {
    const inflight::Hold hold = piece.layout.hold;
    all.emplace_back(hold == inflight::Hold::int8 ? "int8" : hold == inflight::Hold::int4 ? "int4" : "act");
  }
  return all;
}

}  // namespace

NB_MODULE(_native, m) {
  using namespace inflight;
  nb::set_leak_warnings(false);  // what a process holds to its end is not looked over once more there (gc.freeze)
  m.def("available_isas", &available_isas);
  m.def("instruction_sets", &list_instruction_sets);

  nb::class_<Linear>(m, "Linear")
      .def_ro("rows", &Linear::rows)
      .def_ro("columns", &Linear::columns)
      .def_prop_ro("holds", &holds_of)
      .def_prop_ro("nbytes", &Linear::nbytes);
  nb::class_<Adapter>(m, "Adapter")
      .def(nb::init<const Backend&>())
      .def("add", &Adapter::add, nb::arg("backend"), nb::arg("base"), nb::arg("down"), nb::arg("parts"))
      .def_prop_ro("nbytes", &Adapter::nbytes);
  nb::class_<Experts>(m, "Experts")
      .def_prop_ro("count", [](const Experts& e) { return e.mixture.experts; })
      .def_prop_ro("top_k", [](const Experts& e) { return e.mixture.top_k; })
      .def_ro("held", &Experts::held);  // gate and up, then down, of one expert after the other
  nb::class_<Heads>(m, "Heads")
      .def_prop_ro("count", [](const Heads& heads) { return heads.held.size(); })
      .def_prop_ro("rows", &Heads::rows)
      .def_prop_ro("columns", &Heads::columns)
      .def_prop_ro("nbytes", &Heads::nbytes);
  nb::class_<Table>(m, "Table")
      .def_ro("rows", &Table::rows)
      .def_ro("columns", &Table::columns)
      .def_prop_ro("nbytes", &Table::nbytes)
      .def_ro("linear", &Table::linear);
  nb::class_<KVCacheMemory>(m, "KVCache", nb::dynamic_attr())
      .def_prop_ro("num_blocks", [](const KVCacheMemory& held) { return held.blocks; })
      .def_prop_ro("nbytes", [](const KVCacheMemory& held) { return held.memory.bytes(); })
      .def_prop_ro(
          "memory",  // of all blocks, one behind the other, to be read and written beside the kernels
          [](const KVCacheMemory& held) {
            const auto bytes = static_cast<Py_ssize_t>(held.memory.bytes());
            return nb::steal(PyMemoryView_FromMemory(static_cast<char*>(held.memory.data()), bytes, PyBUF_WRITE));
          },
          nb::keep_alive<0, 1>());
  nb::class_<StateCacheMemory>(m, "StateCache")
      .def_prop_ro("rows", [](const StateCacheMemory& held) { return held.cache.rows; })
      .def_prop_ro("snapshots", [](const StateCacheMemory& held) { return held.cache.snapshots; })
      .def_prop_ro(
          "memory",  // of rows and snapshots, one behind the other, to be read and written beside the kernels
          [](StateCacheMemory& held) {
            const auto bytes = static_cast<Py_ssize_t>(held.memory.bytes());
            return nb::steal(PyMemoryView_FromMemory(static_cast<char*>(held.memory.data()), bytes, PyBUF_WRITE));
          },
          nb::keep_alive<0, 1>())
      .def_prop_ro("nbytes", [](const StateCacheMemory& held) { return held.memory.bytes(); });
  nb::class_<Vector>(m, "Vector").def(nb::init<nb::handle>());
  nb::class_<RopeTable>(m, "RopeTable")
      .def(nb::init<nb::handle, nb::handle, nb::handle>(), nb::arg("cos"), nb::arg("sin"), nb::arg("q_scale").none());
  nb::class_<Activation>(m, "Activation")
      .def(nb::init<nb::object>())
      .def_ro("array", &Activation::object)
      .def_ro("rows", &Activation::rows)
      .def_prop_ro("nbytes", [](const Activation& a) { return a.array.nbytes(); });

  nb::class_<SuffixIndex>(m, "SuffixIndex")
      .def(nb::init<>())
      .def_ro_static("bytes_per_token", &SuffixIndex::bytes_per_token)
      .def_ro_static("bytes_alone", &SuffixIndex::bytes_alone)
      .def_ro_static("max_positions", &SuffixIndex::max_positions)
      .def_prop_ro("nbytes", &SuffixIndex::bytes)
      .def_prop_ro("room", &SuffixIndex::room)
      .def("__len__", &SuffixIndex::size)
      .def("append", &append_tokens)
      .def("end_text", &SuffixIndex::end_text)
      .def("drop_text", &SuffixIndex::drop_text)
      .def("propose", &propose_tokens, nb::arg("others").none(), nb::arg("most"));

  nb::class_<AddedTokens>(m, "AddedTokens")
      .def(nb::new_(&make_added), nb::arg("texts"), nb::arg("ids"))
      .def("split", &split_added);
  m.def("string_ends", &string_ends);
  nb::class_<Vocabulary>(m, "Vocabulary")
      .def(nb::init<nb::handle, std::uint64_t, nb::handle, nb::handle, bool>(), nb::arg("data"), nb::arg("begin"),
           nb::arg("ends"), nb::arg("kinds").none(), nb::arg("spaces"))
      .def("add_pairs", &Vocabulary::add_pairs)
      .def("merge_by_scores", &Vocabulary::merge_by_scores, nb::arg("scores").none())
      .def("set_unknown", &Vocabulary::set_unknown)
      .def("keep_words", &Vocabulary::keep_words)
      .def("__len__", &Vocabulary::size)
      .def_prop_ro("longest", &Vocabulary::longest)
      .def_prop_ro("special", &Vocabulary::special)
      .def_prop_ro("defined", &Vocabulary::defined)
      .def("find", &Vocabulary::find)
      .def("token", &Vocabulary::token)
      .def("as_json", &Vocabulary::as_json)
      .def("encode_words", &Vocabulary::encode_words)
      .def("encode_text", &Vocabulary::encode_text)
      .def("encode_places", &Vocabulary::encode_places);

  nb::class_<Trace>(m, "Trace")
      .def_static("now", &Trace::now)
      .def_prop_ro("calls", [](const Trace& trace) { return spans_of(trace.calls()); })
      .def_prop_ro("jobs", [](const Trace& trace) { return spans_of(trace.jobs()); })
      .def_prop_ro("workers", [](const Trace& trace) {
        std::vector<Spans> all;
        for (std::int64_t worker = 0; worker < trace.workers(); ++worker)
          all.push_back(spans_of(trace.of_worker(worker)));
        return all;
      });
  nb::class_<Backend>(m, "Backend")
      .def(nb::init<const std::string&, int, const std::string&, const std::vector<std::vector<int>>&, bool, bool>(),
           nb::arg("dtype"), nb::arg("threads"), nb::arg("isa"), nb::arg("cpus"), nb::arg("hold_caller"),
           nb::arg("first_touch"))
      .def_prop_ro("isa", &Backend::isa)
      .def("pack_linear", nb::overload_cast<Backend&, nb::list, nb::handle>(&pack_linear), nb::arg("pieces"),
           nb::arg("bias").none())
      .def("pack_gate_up", &pack_gate_up, nb::arg("piece"), nb::arg("bias").none())
      .def("pack_experts", &pack_experts, nb::arg("gate_up"), nb::arg("down"), nb::arg("top_k"), nb::arg("scores"),
           nb::arg("renormalize"), nb::arg("sum_offset"), nb::arg("jitter"), nb::arg("correction").none(),
           nb::arg("groups"), nb::arg("top_groups"), nb::arg("group_best"), nb::arg("scale"),
           nb::arg("expert_scale").none(), nb::arg("gating"))
      .def("pack_heads", &pack_heads)
      .def("pack_table", &pack_table)
      .def("pack_rows", &pack_rows)
      .def("finish_packing", &Backend::finish_packing)
      .def("contents", &contents)
      .def("bytes_per_block", &bytes_per_block)
      .def("kv_cache", &kv_cache)
      .def("copy_blocks", &copy_blocks)
      .def("bytes_per_state", &bytes_per_state)
      .def("state_cache", &state_cache)
      .def("begin_state", &begin_state)
      .def("sample", &sample)
      .def("score", &score)
      .def("start_trace", &Backend::start_trace)
      .def("stop_trace", &Backend::stop_trace)
      .def("begin_traced_call", &Backend::begin_traced_call)
      .def("read_bandwidth", &Backend::read_bandwidth)
      .def("peak", &Backend::peak);
  nb::class_<PreparedPass>(m, "PreparedPass")
      .def(nb::init<Backend&, std::shared_ptr<KVCacheMemory>, nb::handle, nb::handle, nb::handle, nb::handle,
                    nb::handle, std::shared_ptr<StateCacheMemory>, nb::handle, nb::handle, nb::handle, nb::handle,
                    nb::handle>(),
           nb::keep_alive<1, 2>(), nb::arg("backend"), nb::arg("kv_cache"), nb::arg("token_ids"), nb::arg("positions"),
           nb::arg("query_start"), nb::arg("context_len"), nb::arg("block_tables"),
           nb::arg("states").none() = nb::none(),
           nb::arg("state_rows") = nb::none(), nb::arg("snapshot_start") = nb::none(),
           nb::arg("snapshot_positions") = nb::none(), nb::arg("snapshot_slots") = nb::none(),
           nb::arg("token_types") = nb::none())
      .def("adapt", &PreparedPass::adapt);

  nb::class_<Program> program(m, "Program");
  program.def(nb::init<>())
      .def("__len__", &Program::size)
      .def(
          "run",
          [](const Program& self, PreparedPass& pass, std::vector<std::int64_t> places,
             std::vector<std::int32_t> firsts, std::vector<std::int32_t> ends) {
            self.run(pass, {std::move(places), std::move(firsts), std::move(ends)});
          },
          nb::arg("prepared"), nb::arg("places"), nb::arg("firsts"), nb::arg("ends"));
#define RECORDED(operation) define_operation(program, #operation, &operation);
  INFLIGHT_OPERATIONS(RECORDED)
#undef RECORDED
}
