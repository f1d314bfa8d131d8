# serve.py with the pinned packages that the tests run with:
#   docker build -t albert .
#   docker run -p 127.0.0.1:8501:8501 -v "$PWD/runs/sst-2:/models/sst-2:ro" albert \
#       --model=/models/sst-2
FROM python:3.11-slim
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir --no-deps -r requirements.txt
COPY albert_tf albert_tf
COPY serve.py .
RUN useradd -m albert
USER albert
EXPOSE 8501
HEALTHCHECK --timeout=10s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://localhost:8501/healthz', timeout=5)"]
ENTRYPOINT ["python", "serve.py", "--host=0.0.0.0"]
