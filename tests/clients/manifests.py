"""Checks the manifests of each FILE against the published schemas of their APIs: Kubernetes' own
(kubernetes-validate, strictly), the models of Kubeflow Trainer and JobSet (kubeflow-trainer-api),
and those of Kubeflow Training v1 (kubeflow-training). Unknown fields are errors everywhere. Prints
`right FILE` or `wrong FILE`, and on stderr what is wrong.
"""

import importlib
import sys
import types

import kubernetes_validate
import yaml

TRAINER = {
    "JobSet": "jobset_v1alpha2_job_set.JobsetV1alpha2JobSet",
    "TrainJob": "trainer_v1alpha1_train_job.TrainerV1alpha1TrainJob",
    "TrainingRuntime": "trainer_v1alpha1_training_runtime.TrainerV1alpha1TrainingRuntime",
}
TRAINING = {
    "KubeflowOrgV1PyTorchJob": "kubeflow_org_v1_py_torch_job",
    "KubeflowOrgV1PyTorchJobSpec": "kubeflow_org_v1_py_torch_job_spec",
    "KubeflowOrgV1RunPolicy": "kubeflow_org_v1_run_policy",
    "KubeflowOrgV1ReplicaSpec": "kubeflow_org_v1_replica_spec",
    "KubeflowOrgV1ElasticPolicy": "kubeflow_org_v1_elastic_policy",
}


def lost(given, kept, where):
    """What a model has not taken over is a field that it does not have."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            if key not in kept:
                # An empty object says as much as none.
                if value != {}:
                    yield f"{where}.{key} is unknown"
            else:
                yield from lost(value, kept[key], f"{where}.{key}")
    elif isinstance(given, list) and isinstance(kept, list):
        for i, (one, other) in enumerate(zip(given, kept)):
            yield from lost(one, other, f"{where}[{i}]")
    elif given != kept and str(given) != str(kept):
        yield f"{where} was {given!r} and is {kept!r}"


def trainer(document):
    module, name = TRAINER[document["kind"]].split(".")
    model = getattr(importlib.import_module("kubeflow_trainer_api.models." + module), name)
    yield from lost(document, model.from_dict(document).to_dict(), document["kind"])


def training_model(name):
    # The package itself wants a client of Kubernetes; its models do not.
    for stub in ("kubeflow.training", "kubeflow.training.models"):
        if stub not in sys.modules:
            spec = importlib.util.find_spec("kubeflow")
            path = list(spec.submodule_search_locations)[0]
            module = types.ModuleType(stub)
            module.__path__ = [path + stub.removeprefix("kubeflow").replace(".", "/")]
            sys.modules[stub] = module
    if "kubeflow.training.configuration" not in sys.modules:
        configuration = types.ModuleType("kubeflow.training.configuration")
        configuration.Configuration = object
        sys.modules["kubeflow.training.configuration"] = configuration
        sys.modules.setdefault("six", types.ModuleType("six"))
    return getattr(importlib.import_module("kubeflow.training.models." + TRAINING[name]), name)


def pod(template):
    kubernetes_validate.validate(
        {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "x"},
            "template": {**template, "spec": {"restartPolicy": "Always", **template["spec"]}},
        },
        "1.32",
        strict=True,
    )


def training(value, kind, where):
    plain = {"str": str, "int": int, "bool": bool}
    if kind in plain:
        if type(value) is not plain[kind]:
            yield f"{where} is no {kind}: {value!r}"
    elif kind.startswith("dict("):
        for key, one in value.items():
            yield from training(one, kind[5:-1].split(", ", 1)[1], f"{where}.{key}")
    elif kind == "V1PodTemplateSpec":
        pod(value)
    elif kind in TRAINING:
        model = training_model(kind)
        names = {json: name for name, json in model.attribute_map.items()}
        for key, one in value.items():
            if key not in names:
                yield f"{where}.{key} is unknown"
            else:
                yield from training(one, model.openapi_types[names[key]], f"{where}.{key}")


def problems_of(documents):
    for document in documents:
        kind = document["kind"]
        try:
            if kind in TRAINER:
                yield from trainer(document)
            elif kind == "PyTorchJob":
                yield from training(document, "KubeflowOrgV1PyTorchJob", kind)
            else:
                kubernetes_validate.validate(document, "1.32", strict=True)
        except Exception as error:  # each model has its own
            yield f"{kind}: {str(error).splitlines()[0]}"


for name in sys.argv[1:]:
    with open(name) as file:
        documents = list(yaml.safe_load_all(file))
    problems = list(problems_of(documents))
    for problem in problems:
        print(f"{name}: {problem}", file=sys.stderr)
    print("right" if documents and not problems else "wrong", name)
