// The Python face of the load generator: the extension module rdzv_launcher.bench._load.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "load.hpp"

namespace nb = nanobind;
using namespace rdzv::load;

namespace {

using Released = nb::call_guard<nb::gil_scoped_release>;

void check_signals() {
  nb::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) {
    throw nb::python_error();
  }
}

}  // namespace

NB_MODULE(_load, m) {
  m.doc() = "The load generator of the benchmarks: thousands of connections on the calling thread.";

  const auto load_error = nb::exception<LoadError>(m, "LoadError");
  nb::exception<ConnectionLost>(m, "ConnectionLost", load_error);
  nb::exception<TimeLimit>(m, "TimeLimit", load_error);

  nb::class_<Figures>(m, "Figures", "What one phase took; `timed` round trips are behind the percentiles.")
      .def_ro("seconds", &Figures::seconds)
      .def_ro("requests", &Figures::requests)
      .def_ro("timed", &Figures::timed)
      .def_ro("p50_us", &Figures::p50_us)
      .def_ro("p99_us", &Figures::p99_us)
      .def_ro("failures", &Figures::failures);

  nb::class_<Load>(m, "Load", "Clients of one server, or of several. Not thread-safe; every method releases the GIL.")
      .def(
          "__init__",
          [](Load* self, const std::vector<std::string>& places, bool echo) {
            new (self) Load(places, echo, check_signals);
          },
          nb::arg("places"), nb::kw_only(), nb::arg("echo") = false)
      .def("connect", &Load::connect, nb::arg("count"), nb::kw_only(), nb::arg("storm") = false, nb::arg("limit_s"),
           Released())
      .def(
          "run",
          [](Load& self, const std::string& workload, const std::string& prefix, std::size_t rounds, double limit_s) {
            return self.run({workload, prefix, rounds}, limit_s);
          },
          nb::arg("workload"), nb::kw_only(), nb::arg("prefix"), nb::arg("rounds"), nb::arg("limit_s"), Released())
      .def("idle", &Load::idle, nb::arg("seconds"), Released())
      .def("close", &Load::close, Released());

  m.def("serve_delayed", &serve_delayed, nb::arg("listener"), nb::arg("place"), nb::arg("delay_s"), Released(),
        "Pass on what comes to a listening socket's file descriptor, in both directions and with a delay in each, until "
        "the process ends.");
  m.def("serve_echo", &serve_echo, nb::arg("listener"), Released(),
        "Serve connections of a listening socket's file descriptor as the bare echo, until the process ends.");
}
