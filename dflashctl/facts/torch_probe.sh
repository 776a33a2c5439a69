# What torch is and which GPUs it sees, under an interpreter of whatever age. Reads python, a path.
# Opens no GPU, only counts them. Prints torch=, torch_cuda=, torch_hip=, torch_gpus=, torch_architectures= lines, or
# torch_failed= or torch_exit=.
PYTORCH_NVML_BASED_CUDA_CHECK=1 "$python" -c '
try:
    import torch
except Exception as error:
    print("torch_failed=" + type(error).__name__ + ": " + str(error).replace("\n", " "))
else:
    print("torch=" + torch.__version__)
    print("torch_cuda=" + str(torch.version.cuda or ""))
    print("torch_hip=" + str(torch.version.hip or ""))
    print("torch_gpus=" + str(torch.cuda.device_count()))
    print("torch_architectures=" + " ".join(torch.cuda.get_arch_list() if torch.version.cuda else ()))
' 2>/dev/null
code=$?
[ "$code" = 0 ] || echo "torch_exit=$code"
